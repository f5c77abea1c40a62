"""One thread that receives from several clients, and what these share: ZeroMQ's context."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from marius_oac.errors import NodeLost
from marius_oac.nodes.transport import client_context, zmq_client
from marius_oac.nodes.transport.client_context import CLIENT_CONTEXT, ClientContext
from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.keeper import KEEPER
from marius_oac.nodes.transport.receiver import Receiver
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_endpoint import POLLOUT
from marius_oac.runtime.channel import Closed
from tests.nodes.transport.conformance import NAMES, SERVER, Conformance, beside, content, outcome_of
from tests.nodes.transport.test_zmq import SECRET, SOON, Zmq, held
from tests.threads import PATIENCE, Watched

pytestmark = pytest.mark.usefixtures("forked_programs")


def received(client):
    """What `receive` returns or raises, by a receiver that is there for this call alone."""
    with closing(Receiver([client])) as receiver:
        arrival = receiver.receive()
    if arrival.error is not None:
        raise arrival.error
    return arrival.frames


class ReceivedZmq(Zmq):
    def make_client(self, server, rank, limits):
        return ReceivedZmqClient(server.address, SERVER, rank, self.security, limits, self.timeout)


class ReceivedZmqClient(ZmqClient):
    receive = received


class TestReceived(Conformance):
    """Whatever a client does it does also where it is received from by a receiver, now attached, now not, which never
    looks at a client of which nothing was told."""

    @pytest.fixture
    def wires(self, monkeypatch):
        monkeypatch.setattr(zmq_client, "_LOOKS", 1e-3)
        wires = ReceivedZmq()
        yield wires
        wires.close()


@pytest.fixture
def wires():
    wires = Zmq()
    yield wires
    wires.close()


def rest_of(receiver):
    """All arrivals until all clients are over: (number, content, or the error's kind)."""
    found = []
    while (arrival := receiver.receive()) is not None:
        found.append((arrival.number, content(arrival.frames) if arrival.error is None else type(arrival.error)))
    return found


# --- several clients -------------------------------------------------------------------------------------------------


def test_who_is_over_is_told_once_after_its_last_message_and_the_others_go_on(wires):
    network = Network()
    servers = [wires.server(), network.server(SERVER, NAMES), wires.server()]
    clients = [wires.connect(servers[0], 0), network.client(SERVER, 1), wires.connect(servers[2], 2)]
    with closing(Receiver(clients)) as receiver:
        for round in range(3):
            for number, server in enumerate(servers):
                server.send(number, [b"%d" % round])
        servers[0].send(0, [b"last"])
        closing_it = beside(servers[0].close)
        found = [receiver.receive() for _ in range(11)]
        outcome_of(*closing_it)
        for number in range(3):
            mine = [each for each in found if each.number == number]
            assert [content(each.frames) for each in mine[:3]] == [[b"%d" % round] for round in range(3)]
            assert [each.error is None for each in mine] == [True] * 3 + [True, False] * (number == 0)
        assert isinstance([each.error for each in found if each.number == 0][-1], NodeLost)
        for number in (1, 2):
            servers[number].send(number, [b"on"])
            assert content(receiver.receive().frames) == [b"on"]
            clients[number].abort()
            over = receiver.receive()
            assert (over.number, type(over.error)) == (number, Closed)
        assert receiver.receive() is None


def test_a_talkative_peer_takes_turns_with_the_others(wires):
    limits = Limits(queue=16)
    server, loud, quiet = wires.pair(0, 1, limits=limits)
    for number in range(8):
        server.send(0, [b"%d" % number])
    server.send(1, [b"quiet"])
    for client, count in ((loud, 8), (quiet, 1)):
        while len(client._inbox) < count:
            with client._changed:
                client._take_in_all()
    with closing(Receiver([loud, quiet])) as receiver:
        assert [receiver.receive().number for _ in range(9)] == [0, 1, *[0] * 7]


def test_nothing_wakes_a_receiver_while_nobody_says_anything(wires, monkeypatch):
    server, *clients = wires.pair(*NAMES)
    looks = []
    for client in clients:
        monkeypatch.setattr(client, "_drain", lambda real=client._drain: (looks.append(1), real()))
    with closing(Receiver(clients)) as receiver:
        waiting = beside(receiver.receive)
        time.sleep(0.3)  # a keeper looks a hundred times a second
        before = len(looks)
        server.send(1, [b"x"])
        assert outcome_of(*waiting).number == 1
        assert before <= len(clients) and not KEEPER._kept.keys() & {id(client) for client in clients}
    assert KEEPER._kept.keys() >= {id(client) for client in clients}


def test_a_process_has_as_many_threads_as_before_with_more_clients(wires):
    server = wires.server()
    with (
        ZmqClient(server.address, SERVER, 0, wires.security) as first,
        ZmqClient(server.address, SERVER, 1, wires.security) as second,
        closing(Receiver([first, second])),
    ):
        time.sleep(0.1)  # ZeroMQ closes what connecting needed a little later
        descriptors, threads, _ = held()
        with ZmqClient(server.address, SERVER, 2, wires.security) as third, closing(Receiver([third])):
            most, deadline = descriptors + 3 + 2, time.monotonic() + PATIENCE  # TCP twice, a mailbox; a receiver's two
            while held()[0] > most and time.monotonic() < deadline:
                time.sleep(0.01)
            more, same, _ = held()
            assert more <= most and same == threads


# --- an attached client and other threads ----------------------------------------------------------------------------


def test_who_waits_to_send_is_let_go_by_the_receiver_and_by_its_end(wires):
    limits = Limits(queue=2)
    server, client = wires.pair(0, limits=limits)
    client._changed = Watched()
    receiver = Receiver([client])
    for message in (b"first", b"second"):
        sending = beside(lambda: [client.send([b"x"]) for _ in range(3)])
        client._changed.parked()
        assert not client._pumping
        server.receive()
        server.send(0, [message])
        if message == b"first":
            assert content(receiver.receive().frames) == [message]
        else:
            receiver.close()  # from now on it waits by itself
        outcome_of(*sending)
        for _ in range(2):
            server.receive()
    assert content(client.receive()) == [b"second"]


def test_the_receiving_thread_may_wait_to_send(wires):
    limits = Limits(queue=2)
    server, client = wires.pair(0, limits=limits)

    def both():
        with closing(Receiver([client])) as receiver:
            receiver.receive()
            for _ in range(5):
                client.send([b"x"])
            return content(receiver.receive().frames)

    working = beside(both)
    server.send(0, [b"go"])
    for _ in range(5):
        server.receive()
    server.send(0, [b"done"])
    assert outcome_of(*working) == [b"done"]


def test_what_a_sender_took_in_is_told_to_the_receiver(wires):
    server, client = wires.pair(0)
    with closing(Receiver([client])) as receiver:
        waiting = beside(receiver.receive)
        with client._changed:  # as a sender: the receiver wakes up, and finds nothing at the descriptor
            server.send(0, [b"x"])
            while not client._inbox:
                client._take_in_all()
        assert content(outcome_of(*waiting).frames) == [b"x"]


def test_what_comes_between_the_last_reading_and_the_look_at_the_connection_is_received(wires, monkeypatch):
    wires.timeout = 4 * PATIENCE  # it is not looked at by itself meanwhile
    server, client = wires.pair(0)
    looks, real = [], client._look

    def look():
        if not looks.append(1) and len(looks) == 1:
            server.send(0, [b"x"])
            poll = select.poll()
            poll.register(client._socket.fileno(), select.POLLIN)
            assert poll.poll(1000 * SOON)
        real()

    monkeypatch.setattr(client, "_look", look)
    with closing(Receiver([client])) as receiver:
        assert content(outcome_of(*beside(receiver.receive)).frames) == [b"x"]


@pytest.mark.parametrize("reads", ["_ready", "_rest"])
def test_an_end_that_another_thread_read_from_the_descriptor_is_found(wires, reads):
    """`_ready`: nobody tells of it, and the receiver looks by itself. `_rest`: as a sender does, which tells."""
    wires.timeout = 2.0 if reads == "_ready" else 4 * PATIENCE
    server, client = wires.pair(0)
    with closing(Receiver([client])) as receiver:
        receiver._wait()  # it was looked at once
        receiver._turns.clear()
        with client._changed:
            server.abort()
            server.close()
            while client._ready() & POLLOUT:
                time.sleep(0)
            if reads == "_rest":
                client._receiver = -1
                client._rest()
        start = time.monotonic()
        assert isinstance(receiver.receive().error, NodeLost)
        assert time.monotonic() - start < wires.timeout / 4 + SOON


def test_an_error_at_an_attached_client_surfaces_in_every_call_and_at_no_other(wires):
    server, broken, whole = wires.pair(0, 1)

    def fail():
        raise RuntimeError("broken")

    with closing(Receiver([broken, whole])) as receiver:
        with broken._changed:
            broken._look = fail
        receiver._woken.append(0)
        arrival = receiver.receive()
        assert arrival.number == 0 and isinstance(arrival.error, RuntimeError)
        with pytest.raises(RuntimeError, match="broken"):
            broken.send([b"x"])
        server.send(1, [b"on"])
        assert content(receiver.receive().frames) == [b"on"]
    broken.abort()


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_client_that_is_closed_while_its_message_is_received(wires, how):
    """`close` waits until the message is taken in; neither the message nor the end is lost or told twice."""
    server, client = wires.pair(0)
    entered, go_on = threading.Event(), threading.Event()
    real = client._take_in

    def slowly(frames):
        entered.set()
        assert go_on.wait(PATIENCE)
        real(frames)

    client._take_in = slowly
    receiver = Receiver([client])
    waiting = beside(lambda: rest_of(receiver))
    server.send(0, [b"x"])
    assert entered.wait(PATIENCE)
    client._take_in = real
    stopping = beside(getattr(client, how))
    if how == "close":
        stopping[0].join(0.1)
        assert stopping[0].is_alive()
    else:
        outcome_of(*stopping)
    go_on.set()
    assert outcome_of(*waiting) == [(0, [b"x"]), (0, Closed)]
    if how == "close":
        outcome_of(*stopping)
    receiver.close()


def test_a_descriptor_is_forgotten_before_its_number_can_be_used_again(wires):
    server, first, second = wires.pair(0, 1)
    receiver = Receiver([first, second])
    numbers = dict(receiver._numbers)
    first.close()
    assert receiver._numbers == {each: number for each, number in numbers.items() if number == 1}
    reused = os.eventfd(1)
    assert receiver.receive()[:2] == (0, None)
    server.send(1, [b"x"])
    assert receiver.receive().number == 1
    os.close(reused)
    receiver.close()
    first.detach()
    assert id(first) not in KEEPER._kept


def test_who_is_over_wakes_nobody_any_more(wires):
    """Its socket is still open, and the descriptor may be readable."""
    server, client = wires.pair(0)
    with closing(Receiver([client])) as receiver:
        (descriptor,) = receiver._numbers
        client.abort()
        assert rest_of(receiver) == [(0, Closed)]
        with pytest.raises(FileNotFoundError):
            receiver._epoll.unregister(descriptor)


def test_a_receiver_of_a_client_that_is_closed_already(wires):
    server, client = wires.pair(0)
    client.close()
    with closing(Receiver([client])) as receiver:
        assert rest_of(receiver) == [(0, Closed)]
    with closing(Receiver([])) as receiver:
        assert receiver.receive() is None


# --- the context -----------------------------------------------------------------------------------------------------


def test_a_context_lives_from_the_first_client_to_the_last(wires):
    server, first, second = wires.pair(0, 1)
    context = first._context
    assert second._context is context
    first.close()
    assert not context.closed
    second.close()
    assert context.closed and CLIENT_CONTEXT._context is None and not CLIENT_CONTEXT._users
    with pytest.raises(NodeLost):
        ZmqClient("nonsense", SERVER, 0, wires.security, timeout=0.1)
    assert CLIENT_CONTEXT._context is None


def test_a_client_that_comes_while_the_last_context_ends_waits_for_nothing(monkeypatch):
    ending, go_on = threading.Event(), threading.Event()
    real = client_context.zmq.Context.term

    def term(context):
        ending.set()
        assert go_on.wait(PATIENCE)
        real(context)

    monkeypatch.setattr(client_context.zmq.Context, "term", term)
    shared = ClientContext()
    first = shared.acquire()
    last = beside(shared.release)
    assert ending.wait(PATIENCE)
    second = shared.acquire()
    assert second is not first and shared.acquire() is second
    go_on.set()
    outcome_of(*last)
    assert first.closed and not second.closed
    shared.release()
    assert not second.closed
    shared.release()
    assert second.closed


def test_a_context_has_room_for_the_clients_of_a_large_run():
    shared = ClientContext()
    context = shared.acquire()
    assert context.get(client_context.zmq.MAX_SOCKETS) >= 4096 and 1 <= context.get(client_context.zmq.IO_THREADS) <= 4
    shared.release()


def test_a_forked_process_has_a_context_of_its_own(wires):
    server, client = wires.pair(0)
    child = os.fork()
    if not child:
        fresh = CLIENT_CONTEXT._context is None and not CLIENT_CONTEXT._users
        os._exit(0 if fresh and CLIENT_CONTEXT._lock.acquire(timeout=1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    client.send([b"still here"])
    assert content(server.receive().frames) == [b"still here"]


@pytest.mark.slow
def test_clients_end_in_time_though_a_peer_is_frozen(wires):
    """The last client ends the context, which waits for what the one before could not send."""
    wires.timeout = 1.0
    server, whole = wires.pair(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.nodes.transport.peer", "127.0.0.1:0", "0", "serve", "0", str(wires.timeout)],
        env=os.environ | {"MARIUS_OAC_SECRET": SECRET.hex()}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        client = ZmqClient(process.stdout.readline().strip(), SERVER, 0, wires.security, timeout=wires.timeout)
        process.send_signal(signal.SIGSTOP)
        client.send([bytes(100_000_000)])
        start = time.monotonic()
        client.close()
        whole.close()
        assert time.monotonic() - start < 2 * wires.timeout + SOON and CLIENT_CONTEXT._context is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
