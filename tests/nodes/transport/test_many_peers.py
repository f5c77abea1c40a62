"""What a server and a process do with many peers: nothing grows with those that are silent, and all are let in."""

import socket
import threading

import pytest

from benchmarks.nodes import peers
from marius_oac.errors import NodeLost
from marius_oac.nodes.transport import zmq_client, zmq_server
from marius_oac.nodes.transport.contract import Request
from marius_oac.nodes.transport.keeper import KEEPER, Keeper
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from tests.nodes.transport.conformance import NAMES, SERVER, beside, outcome_of
from tests.nodes.transport.test_zmq import Zmq
from tests.threads import PATIENCE


@pytest.fixture
def wires():
    wires = Zmq()
    yield wires
    wires.close()


class Tended:
    def __init__(self):
        self.rounds = threading.Semaphore(0)

    def tend(self):
        self.rounds.release()


def test_a_keeper_has_a_thread_while_it_has_an_endpoint():
    keeper, first, second = Keeper(), Tended(), Tended()
    before = set(threading.enumerate())
    for _ in range(2):
        keeper.add(first)
        keeper.add(second)
        (thread,) = set(threading.enumerate()) - before
        assert first.rounds.acquire(timeout=PATIENCE) and second.rounds.acquire(timeout=PATIENCE)
        keeper.remove(first)
        keeper.remove(first)
        while first.rounds.acquire(blocking=False):
            continue
        assert second.rounds.acquire(timeout=PATIENCE) and second.rounds.acquire(timeout=PATIENCE)
        assert thread.is_alive() and not first.rounds.acquire(blocking=False)
        keeper.remove(second)
        assert not thread.is_alive()


def test_an_error_while_nobody_waits_ends_no_thread_and_is_raised_in_every_call(wires, monkeypatch):
    server, _ = wires.pair(0)
    KEEPER.remove(server)

    def say():
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(server._refusals, "say", say)
        server.tend()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            server.receive()
    server._error = None
    KEEPER.add(server)  # it answers the farewells


def test_silent_peers_are_not_looked_at_when_one_speaks(wires):
    server, *clients = wires.pair(*NAMES)

    class OfOne(dict):
        def items(self):
            raise AssertionError("all connections are looked at")

        values = __iter__ = items

    KEEPER.remove(server)
    server._by_rank, server._next_probe = OfOne(server._by_rank), float("inf")
    for _ in range(3):
        clients[0].send([b"x"])
        assert server.receive() == Request(0, [b"x"])
    server._by_rank = {rank: server._by_rank[rank] for rank in NAMES}
    KEEPER.add(server)  # it answers the farewells


def test_of_many_peers_some_are_checked_at_a_tick_and_all_in_turn(wires, monkeypatch):
    monkeypatch.setattr(zmq_server, "_PROBED_AT_ONCE", 2)
    server, *_ = wires.pair(*NAMES)
    checked = []
    with server._changed, monkeypatch.context() as patch:
        server._next_probed, server._probed_until = 0, float("inf")
        patch.setattr(server, "_put", lambda connection, kind: not checked.append(connection.name))
        for suspicions in (0, 0, 0, 1):
            server._suspicions, server._next_probe = suspicions, 0.0
            server._look()
        server._suspicions, server._next_probe, server._probed_until = 0, 0.0, 0.0
        server._look()  # no connection has ended: none is checked
    assert checked == [*NAMES.values(), NAMES[0], NAMES[1], *NAMES.values()]


def test_who_is_gone_is_told_once_and_who_is_lost_every_time(wires):
    server = ZmqServer("127.0.0.1:0", SERVER, NAMES, wires.security, elastic_workers=[1])
    waiting = beside(server.receive)
    lasting, passing = (ZmqClient(server.address, SERVER, rank, wires.security) for rank in (0, 1))
    passing.close()
    assert outcome_of(*waiting) == Request(1, None) and not server._departures
    waiting = beside(server.receive)
    with ZmqClient(server.address, SERVER, 1, wires.security) as again:
        again.send([b"again"])
        assert outcome_of(*waiting) == Request(1, [b"again"])
    assert server.receive() == Request(1, None)
    lasting.abort()
    lasting.close()
    for _ in range(2):
        with pytest.raises(NodeLost, match=NAMES[0]):
            server.receive()
    server.close()


def test_what_a_lost_trainer_sent_before_is_received_first(wires):
    server, client = wires.pair(0)
    client.send([b"last"])
    while not server._inbox:
        with server._changed:
            server._take_in_all()
    server._by_rank[0].end("it is gone")
    assert server.receive() == Request(0, [b"last"])
    with pytest.raises(NodeLost, match="it is gone"):
        server.receive()
    client.abort()  # nobody says farewell to it


def test_a_server_that_closes_connections_is_crowded_for_a_while(wires, monkeypatch):
    """A trainer that is cut eight times, as where a thousand come at once, is let in."""
    monkeypatch.setattr(zmq_client, "_BACKOFF", 0.001)
    crowded = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{crowded.getsockname()[1]}"
    connecting = beside(lambda: ZmqClient(address, SERVER, 0, wires.security, timeout=PATIENCE))
    for _ in range(8):
        crowded.accept()[0].close()
    crowded.close()
    server = ZmqServer(address, SERVER, NAMES, wires.security)
    outcome_of(*connecting).close()
    server.close()


def test_all_that_come_at_once_are_let_in():
    found = peers.measured(24)
    assert found.there == 24 and found.idle.threads <= 8 + 2 * 3


def test_the_benchmark_of_peers_runs(capsys):
    peers.main(["--peers", "3", "--seconds", "0.2"])
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.startswith("| peers |") and row.startswith("| 3 | 3 |")
