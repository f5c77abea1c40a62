"""Many connections at once, of strangers and of honest trainers: nobody honest is lost, and nothing spins."""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import psutil
import pytest
import zmq

from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_gate import CROWD, SLOW, UNFINISHED, Visitors, most_unproved
from marius_oac.nodes.transport.zmq_server import ZmqServer
from tests.nodes.transport.conformance import SERVER, content
from tests.nodes.transport.guarded import LIMITS, Guarded
from tests.nodes.transport.strangers import counted, place
from tests.nodes.transport.test_zmq import SECRET
from tests.threads import PATIENCE

TIMEOUT = 20.0
OPEN_FILES = 256


@pytest.fixture
def few(request, monkeypatch):
    """A server with room for four connections that have proved nothing."""
    monkeypatch.setattr("marius_oac.nodes.transport.zmq_server.most_unproved", lambda ranks: 4)
    guarded = Guarded(timeout=TIMEOUT)
    request.addfinalizer(guarded.close)
    return guarded


def ended(connection):
    """Waits until the server has ended a connection."""
    connection.settimeout(PATIENCE)
    try:
        while connection.recv(1000):
            continue
    except ConnectionResetError:
        return


def test_of_too_many_strangers_the_oldest_go(few):
    silent = []
    for number in range(12):
        silent.append(socket.create_connection(place(few.address)))
        if number >= 4:
            counted(few.server, CROWD, number - 3)
    for connection in silent[:8]:
        ended(connection)
    few.go_on()
    other = ZmqClient(few.address, SERVER, 1, few.security, LIMITS)
    other.send([b"among strangers"])
    assert few.server.receive().peer == 1
    other.close()
    assert few.server.refused == {CROWD: few.server.refused[CROWD]}
    for connection in silent:
        connection.close()


def test_who_proves_nothing_in_time_is_cut_however_long_others_may_be_silent(request, monkeypatch):
    monkeypatch.setattr("marius_oac.nodes.transport.zmq_server.PROVING", 0.3)
    guarded = Guarded(timeout=TIMEOUT)
    request.addfinalizer(guarded.close)
    with socket.create_connection(place(guarded.address)) as silent:
        guarded.insider().hello()
        ended(silent)
    guarded.counted(SLOW)
    guarded.counted(UNFINISHED)


def test_failures_that_are_told_without_end_keep_nobody_from_cutting():
    """Where the process has no descriptor left, ZeroMQ tells so faster than it can be read. All that was told before is
    read all the same: as much as its two queues of a thousand hold."""

    class Told:
        def __init__(self):
            self.read = 0

        def getsockopt(self, option):
            assert self.read < 100_000, "reads for ever"
            return zmq.POLLIN

        def recv_multipart(self, flags):
            self.read += 1
            event = zmq.EVENT_ACCEPT_FAILED if self.read != 2000 else zmq.EVENT_ACCEPTED
            return [event.to_bytes(2, "little") + (2000).to_bytes(4, "little"), b""]

    told = Told()
    visitors = Visitors(SimpleNamespace(get_monitor_socket=lambda watched: told), None, None, 4, 60.0)
    cut = []
    visitors._cut = lambda descriptor, why: cut.append((descriptor, why))
    visitors.look()
    visitors._duplicate.close()
    assert cut == [(2000, CROWD)]


def answer(honest, question):
    honest.send([question])
    return content(honest.receive())[0]


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_three_hundred_silent_connections_and_256_open_files(encrypted):
    """ZeroMQ alone tries for ever to accept one more, and takes a processor for it."""
    command = [sys.executable, "-m", "tests.nodes.transport.peer", "127.0.0.1:0", "0", "serve", str(int(encrypted))]
    environment = os.environ | {"MARIUS_OAC_SECRET": SECRET.hex()}
    with ExitStack() as stack:
        few = ["sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh"]  # before it decides for how many there is room
        process = subprocess.Popen([*few, *command, "60"], env=environment, stdout=subprocess.PIPE, text=True)
        stack.enter_context(process)
        stack.callback(process.kill)
        address = process.stdout.readline().strip()
        security = Security(secret=SECRET, run="run", encrypted=encrypted)
        for _ in range(300):
            stack.enter_context(socket.create_connection(place(address)))
        honest = stack.enter_context(ZmqClient(address, SERVER, 0, security, timeout=TIMEOUT / 2))
        refused, end = {}, time.monotonic() + PATIENCE
        while sum(refused.values()) < 300 - OPEN_FILES // 4:  # it may have come before some of them
            assert time.monotonic() < end, refused
            refused = json.loads(answer(honest, b"refused?"))
        assert set(refused) <= {CROWD, SLOW}
        watched = psutil.Process(process.pid)
        assert watched.num_fds() < OPEN_FILES
        before = sum(watched.cpu_times()[:2])
        threading.Event().wait(1.0)  # a measurement
        assert sum(watched.cpu_times()[:2]) - before < 0.5
        assert answer(honest, b"still there?") == b"still there?"


@pytest.mark.parametrize(
    ("ranks", "descriptors", "most"),
    [(2, 1 << 20, 256), (1000, 1 << 20, 2000), (2, 256, 64), (2, 1, 1), (2, resource.RLIM_INFINITY, 256)],
)
def test_room_for_the_unproved(ranks, descriptors, most):
    assert most_unproved(ranks, lambda which: (descriptors, descriptors)) == most


def test_a_trainer_is_let_in_beside_seventy_handshakes(request):
    guarded = Guarded(timeout=TIMEOUT)
    request.addfinalizer(guarded.close)
    for _ in range(70):
        guarded.insider().hello()
    with ZmqClient(guarded.address, SERVER, 2, guarded.security, LIMITS) as client:
        client.send([b"the seventy-first"])
        assert guarded.server.receive().peer == 2


def test_more_honest_trainers_at_once_than_there_is_room_for(monkeypatch):
    """Those that are cut come again."""
    monkeypatch.setattr("marius_oac.nodes.transport.zmq_server.most_unproved", lambda ranks: 6)
    security = Security(secret=SECRET, run="run", encrypted=True)
    names = {rank: f"n{rank}" for rank in range(12)}
    server = ZmqServer("127.0.0.1:0", SERVER, names, security, timeout=TIMEOUT)
    outcomes = []

    def connect(rank):
        try:
            with ZmqClient(server.address, SERVER, rank, security, timeout=TIMEOUT) as client:
                client.send([b"here"])
            outcomes.append("served")
        except Exception as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in names]
    with server._changed:  # nobody is answered before half of them were cut
        for thread in threads:
            thread.start()
        while server.refused[CROWD] < len(names) // 2:
            server._visitors.look()
    for thread in threads:
        thread.join(PATIENCE)
    assert outcomes == ["served"] * len(names) and server.refused[CROWD]
    assert {server.receive().peer for _ in names} == set(names)
    server.close()
