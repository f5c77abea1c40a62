"""The transport over ZeroMQ, in one process and with peers that are killed, frozen or busy."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.transport import zmq_endpoint
from marius_oac.nodes.transport.contract import Limits, Request, Security
from marius_oac.nodes.transport.keeper import KEEPER
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_endpoint import EVENTS, POLLIN
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.channel import Closed
from tests.nodes.transport.conformance import NAMES, SERVER, Conformance, Wires, beside, content, outcome_of
from tests.run_folders import slow
from tests.threads import PATIENCE

pytestmark = pytest.mark.usefixtures("forked_programs")
SECRET = bytes(range(32))
TIMEOUT = 20.0
SOON = 1.5


class Zmq(Wires):
    def __init__(self, encrypted=False, timeout=TIMEOUT):
        super().__init__()
        self.security = Security(secret=SECRET, run="run", encrypted=encrypted)
        self.timeout, self.lines = timeout, []

    def make_server(self, limits, address="127.0.0.1:0"):
        return ZmqServer(address, SERVER, NAMES, self.security, limits, self.timeout, self.lines.append)

    def make_client(self, server, rank, limits):
        return ZmqClient(server.address, SERVER, rank, self.security, limits, self.timeout)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def wires(request):
    wires = Zmq(request.param)
    yield wires
    wires.close()


class TestZmq(Conformance):
    def test_other_limits_are_refused(self, wires):
        assert "other limits" in wires.refused(wires.server(), 0, Limits(queue=3))


# --- addresses -------------------------------------------------------------------------------------------------------


def listening():
    return {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}


def test_every_listening_socket_of_the_process_is_where_we_said(wires):
    before = listening()
    servers = [wires.server() for _ in range(3)]
    client = wires.connect(servers[0], 0)
    ours = {("127.0.0.1", int(server.address.removeprefix("127.0.0.1:"))) for server in servers}
    assert len(ours) == 3 and listening() - before == ours
    client.close()
    for server in servers:
        server.close()
    assert listening() == before


def test_ipv6(wires):
    server = wires.server(address="[::1]:0")
    assert server.address.startswith("[::1]:")
    client = wires.connect(server, 0)
    server.send(0, [b"six"])
    assert content(client.receive()) == [b"six"]


NO_ADDRESSES = ["localhost:0", "*:0", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "eth0:1", "", "::1", "::1:0"]


@pytest.mark.parametrize("address", [*NO_ADDRESSES, "[127.0.0.1]:0"])
def test_a_server_takes_nothing_but_the_address_of_an_interface(wires, address):
    with pytest.raises(InputError, match=f"node {SERVER}: .* is not an address"):
        wires.server(address=address)


def test_addresses_that_cannot_be_had(wires):
    taken = wires.server().address
    with pytest.raises(InputError, match=f"node {SERVER}: can't listen at {taken}: Address already in use"):
        wires.server(address=taken)
    with pytest.raises(InputError, match="node shard-0: can't listen at 192.0.2.1:0: "):
        wires.server(address="192.0.2.1:0")


def test_a_client_waits_for_its_server_to_listen(wires):
    address = wires.server().address
    wires.close()
    waiting = beside(lambda: ZmqClient(address, SERVER, 0, wires.security, timeout=TIMEOUT))
    waiting[0].join(0.2)
    server = wires.server(address=address)
    serving = beside(server.receive)
    client = outcome_of(*waiting)
    client.send([b"at last"])
    assert outcome_of(*serving) == Request(0, [b"at last"])
    client.close()


def test_nobody_there(wires):
    address = wires.server().address
    wires.close()
    start = time.monotonic()
    with pytest.raises(NodeLost, match=f"node {SERVER}: it didn't answer at {address} within 0.3 s"):
        ZmqClient(address, SERVER, 0, wires.security, timeout=0.3)
    assert time.monotonic() - start < 0.3 + SOON
    with pytest.raises(NodeLost, match="can't connect"):
        ZmqClient("nonsense", SERVER, 0, wires.security, timeout=0.3)


# --- what is left ----------------------------------------------------------------------------------------------------


def held():
    process = psutil.Process()
    return process.num_fds(), process.num_threads(), {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("parting", [False, True])
def test_what_could_be_received_a_moment_ago_may_be_gone(wires, monkeypatch, parting):
    """libzmq drops what a client has not received when its server has gone, also between EVENTS and the receiving."""
    server, client = wires.pair(0)
    told, has_event = [], zmq_endpoint.has_event

    def dropped(socket, event):
        if event != POLLIN or has_event(socket, event) or socket is not client._socket:
            return has_event(socket, event)
        told.append(event)
        return len(told) % 2 == 1

    monkeypatch.setattr(zmq_endpoint, "has_event", dropped)
    if not parting:
        server.send(0, [b"after"])
        assert content(client.receive()) == [b"after"]
    client.close()
    assert told


def test_nothing_is_left_after_close(wires):
    def run():
        server, client = wires.pair(0)
        big = np.zeros(1_000_000)
        client.send([big])
        server.send(0, server.receive().frames)
        client.receive()
        client.close()
        server.close()
        with pytest.raises(NodeLost):
            ZmqClient(server.address, SERVER, 0, wires.security, timeout=0.1)
        with pytest.raises(InputError):
            wires.server(address="192.0.2.1:0")

    run()  # ZeroMQ's Python binding keeps one context of its own for the process
    before = held()
    for _ in range(3):
        run()
    assert held() == before


def test_a_client_that_can_not_part_leaves_nothing_either(wires, monkeypatch):
    def run():
        server, client = wires.pair(0)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no farewell"):
            patch.setattr(client, "_part", part)
            client.close()
        client.close()
        server.abort()
        server.close()

    def part():
        raise OSError("no farewell")

    run()
    before = held()[::2]  # the system may still count a thread that has ended
    run()
    assert held()[::2] == before


def test_what_stops_a_farewell_waits_for_who_uses_the_socket(wires, monkeypatch):
    """A socket that is closed under a thread that receives from it is the end of the process."""
    server, client = wires.pair(0)
    pumping, waiting, release = [], beside(client.receive), client._release
    while not client._pumping:
        assert not threading.Event().wait(0.01)

    def stopped():
        raise OSError("stopped")

    def noted(linger):
        pumping.append(client._pumping)
        release(linger)

    monkeypatch.setattr(client, "_before_parting", stopped)
    monkeypatch.setattr(client, "_release", noted)
    with pytest.raises(OSError, match="stopped"):
        client.close()
    assert isinstance(outcome_of(*waiting), Closed) and pumping == [False]
    server.abort()


WATCHER = SimpleNamespace(watch=lambda *_: None, wake=lambda: None, forget=lambda: None)


def test_who_waits_to_send_is_let_go_where_a_receiver_has_the_client(wires):
    _, client = wires.pair(0, limits=Limits(queue=2))
    client.attach(WATCHER)
    waiting = beside(lambda: [client.send([b"more"]) for _ in range(9)])
    while client._connection.outgoing.fits(4):
        assert not threading.Event().wait(0.01)
    client.close()
    assert isinstance(outcome_of(*waiting), Closed)


def test_a_client_that_is_closed_while_it_is_detached_is_not_kept(wires):
    _, client = wires.pair(0)
    client.attach(WATCHER)
    client._closed = True
    client.detach()
    assert id(client) not in KEEPER._kept
    client._closed = False


def test_abort_takes_no_lock(wires):
    server, client = wires.pair(0)
    with server._changed, client._changed:
        server.abort()
        client.abort()


def test_what_the_descriptor_told_while_nobody_looked_is_not_forgotten(wires):
    server, client = wires.pair(0)
    KEEPER.remove(server)  # from now on only calls look at the socket
    server._tick = 2 * PATIENCE
    client.send([b"x"])
    while (
        not server._socket.getsockopt(EVENTS) & POLLIN
    ):  # as a send by another thread does, this silences the descriptor
        time.sleep(0)
    assert outcome_of(*beside(server.receive)) == Request(0, [b"x"])
    server.close()  # the client, which has a keeper, answers


def test_a_trainer_is_lost_even_if_its_end_was_told_too_early(wires):
    """ZeroMQ tells of it a little before it is so: on a busy machine all looks may be over by then."""
    server, client = wires.pair(0)
    with server._changed:
        server._visitors.look = lambda: True
        server._drain()
        server._visitors.look, server._suspicions = lambda: False, 0
    waiting = beside(server.receive)
    client.abort()
    client.close()
    assert isinstance(outcome_of(*waiting), NodeLost)


def test_a_look_at_a_trainer_does_not_forget_what_it_has_to_be_told(wires):
    server, client = wires.pair(0, limits=Limits(queue=4))
    for number in range(20):
        thread, sent = beside(lambda number=number: client.send([b"%d" % number]))
        outcome_of(thread, [sent])
        assert content(server.receive().frames) == [b"%d" % number]
        with server._changed:
            server._next_probe, server._probed_until = 0.0, float("inf")
            server._look()


def test_an_error_in_the_background_surfaces_in_every_call(wires):
    server, client = wires.pair(0)

    def fail():
        raise RuntimeError("broken")

    with server._changed:
        server._look, server._next_look = fail, 0.0
    waiting = beside(server.receive)
    assert isinstance(outcome_of(*waiting), RuntimeError)
    deadline = time.monotonic() + PATIENCE
    while server._error is None and time.monotonic() < deadline:
        time.sleep(0)
    for call in (server.receive, lambda: server.send(0, [b"x"])):
        with pytest.raises(RuntimeError, match="broken"):
            call()
    server.close()


# --- peers in other processes ----------------------------------------------------------------------------------------


@pytest.fixture
def away():
    """`away(server, rank, what)`: a trainer in another process that sends `here` and then does `what`."""
    processes = []

    def start(wires, server, rank, what):
        command = [sys.executable, "-m", "tests.nodes.transport.peer", server.address, str(rank), what]
        options = [str(int(wires.security.encrypted)), str(wires.timeout)]
        process = subprocess.Popen([*command, *options], env=os.environ | {"MARIUS_OAC_SECRET": SECRET.hex()})
        processes.append(process)
        assert server.receive() == Request(rank, [b"here"])
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


KILLED, FROZEN = signal.SIGKILL, signal.SIGSTOP
PLAIN, ENCRYPTED = False, True


@pytest.mark.parametrize(
    "wires, way, call",
    [
        (PLAIN, KILLED, "receive"), (ENCRYPTED, KILLED, "send"),
        (PLAIN, FROZEN, "send"), (ENCRYPTED, FROZEN, "receive"),
        slow(ENCRYPTED, KILLED, "receive"), slow(PLAIN, KILLED, "send"), slow(ENCRYPTED, FROZEN, "send"),
        slow(PLAIN, FROZEN, "receive"),
    ],
    indirect=["wires"],
)  # fmt: skip
def test_a_trainer_that_is_killed_or_frozen_is_lost_in_time(away, wires, way, call):
    wires.timeout = TIMEOUT if way == KILLED else 1.0
    server = wires.server()
    process = away(wires, server, 1, "wait")
    if call == "receive":
        waiting = beside(server.receive)
    else:
        waiting = beside(lambda: [server.send(1, part) for part in repeat([b"x" * 1_000_000])])
    waiting[0].join(0.2)
    start = time.monotonic()
    process.send_signal(way)
    lost = outcome_of(*waiting)
    waited = time.monotonic() - start
    assert isinstance(lost, NodeLost) and lost.node == "green"
    assert waited < (SOON if way == KILLED else wires.timeout + SOON)


def test_a_trainer_that_is_killed_in_the_middle_of_a_message_leaves_the_others_alone(away, wires):
    server = wires.server()
    client = wires.connect(server, 0)
    process = away(wires, server, 1, "flood")
    for _ in range(5):
        server.receive()
    process.kill()
    with pytest.raises(NodeLost, match="node green"):
        while True:
            assert server.receive().peer == 1
    server.send(0, [b"on we go"])
    assert content(client.receive()) == [b"on we go"]


@pytest.mark.parametrize("wires", [PLAIN, slow(ENCRYPTED)], indirect=True)
def test_a_trainer_that_keeps_its_interpreter_busy_is_not_lost(away, wires):
    wires.timeout = 0.6
    server = wires.server()
    away(wires, server, 1, "busy")  # 1.5 s in which none of its Python threads can run
    assert server.receive() == Request(1, [b"done"])


@pytest.mark.parametrize("wires", [slow(PLAIN), ENCRYPTED], indirect=True)
def test_a_server_that_keeps_its_interpreter_busy_is_not_lost(away, wires):
    wires.timeout = 0.6
    server = wires.server()
    away(wires, server, 1, "echo")
    ctypes.PyDLL(None).usleep(1_500_000)
    for number in range(3):
        server.send(1, [b"%d" % number])
        assert server.receive() == Request(1, [b"%d" % number])


@pytest.mark.parametrize(
    "wires, way",
    [(PLAIN, KILLED), (ENCRYPTED, FROZEN), slow(ENCRYPTED, KILLED), slow(PLAIN, FROZEN)],
    indirect=["wires"],
)
def test_a_server_that_is_killed_or_frozen_is_lost_in_time(wires, way):
    wires.timeout = TIMEOUT if way == KILLED else 1.0
    options = [str(int(wires.security.encrypted)), str(wires.timeout)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.nodes.transport.peer", "127.0.0.1:0", "0", "serve", *options],
        env=os.environ | {"MARIUS_OAC_SECRET": SECRET.hex()},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with ZmqClient(process.stdout.readline().strip(), SERVER, 0, wires.security, timeout=wires.timeout) as client:
            client.send([b"x"])
            assert content(client.receive()) == [b"x"]
            answers = iter(client.receive, None)  # some may come before the signal does
            waiting = [
                beside(lambda: [None for _ in answers]),
                beside(lambda: [client.send(part) for part in repeat([bytes(1_000_000)])]),
            ]
            start = time.monotonic()
            process.send_signal(way)
            for lost in (outcome_of(*one) for one in waiting):
                assert isinstance(lost, NodeLost) and lost.node == SERVER
            assert time.monotonic() - start < (SOON if way == KILLED else wires.timeout + SOON)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
