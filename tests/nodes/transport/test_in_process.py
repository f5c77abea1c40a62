import threading

import numpy as np
import pytest

from marius_oac.errors import NodeLost
from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.in_process import Network, Way
from marius_oac.runtime.channel import Closed
from tests.nodes.transport.conformance import NAMES, SERVER, Conformance, Wires, beside, content, outcome_of


class InProcess(Wires):
    def __init__(self, **options):
        super().__init__()
        self.network = Network(**options)

    def make_server(self, limits):
        return self.network.server(SERVER, NAMES, limits)

    def make_client(self, server, rank, limits):
        return self.network.client(SERVER, rank)


@pytest.fixture
def wires():
    wires = InProcess()
    yield wires
    wires.close()


class TestInProcess(Conformance):
    pass


def test_nothing_is_copied(wires):
    server, client = wires.pair(0)
    array = np.arange(10)
    client.send([array])
    assert np.shares_memory(np.frombuffer(server.receive().frames[0], np.int64), array)


def test_messages_that_are_held_are_overtaken_by_those_of_others(wires):
    server, first, second = wires.pair(0, 1)
    wires.network.hold(SERVER, 0, Way.REQUEST)
    for number in range(3):
        first.send([b"%d" % number])
    second.send([b"quick"])
    assert server.receive().peer == 1
    wires.network.release(SERVER, 0, Way.REQUEST, 1)
    assert content(server.receive().frames) == [b"0"]
    first.send([b"3"])
    wires.network.release(SERVER, 0, Way.REQUEST)
    first.send([b"4"])
    assert [content(server.receive().frames) for _ in range(4)] == [[b"%d" % number] for number in (1, 2, 3, 4)]


def test_replies_are_held_apart_from_requests(wires):
    server, client = wires.pair(0)
    wires.network.hold(SERVER, 0, Way.REPLY)
    server.send(0, [b"late"])
    client.send([b"on time"])
    assert content(server.receive().frames) == [b"on time"]
    waiting = beside(client.receive)
    wires.network.release(SERVER, 0, Way.REPLY)
    assert content(outcome_of(*waiting)) == [b"late"]


def test_the_delay_knows_way_and_rank_and_makes_its_sender_wait():
    go, delayed = threading.Event(), []

    def delay(way, rank):
        delayed.append((way, rank))
        if rank == 1:
            assert go.wait(30)

    wires = InProcess(delay=delay)
    server = wires.server()
    first, second = wires.client(server, 0), wires.client(server, 1)
    sending = beside(lambda: second.send([b"slow"]))
    first.send([b"quick"])
    assert server.receive().peer == 0
    go.set()
    assert server.receive().peer == 1
    server.send(0, [b"reply"])
    outcome_of(*sending)
    assert sorted(delayed, key=str) == [(Way.REPLY, 0), (Way.REQUEST, 0), (Way.REQUEST, 1)]
    wires.close()


def test_killed_ends_are_closed_to_themselves_and_lost_to_others(wires):
    server, first, second = wires.pair(0, 1)
    waiting = beside(first.receive)
    wires.network.kill(SERVER, 0)
    assert isinstance(outcome_of(*waiting), Closed)
    with pytest.raises(NodeLost, match="node red"):
        server.receive()
    wires.network.kill(SERVER)
    with pytest.raises(Closed):
        server.receive()
    with pytest.raises(NodeLost, match=SERVER):
        second.receive()


def test_a_client_waits_for_its_server():
    wires = InProcess()
    waiting = beside(lambda: wires.network.client(SERVER, 0))
    wires.network.server(SERVER, NAMES, Limits())
    outcome_of(*waiting).close()
    with pytest.raises(NodeLost, match="node other: it didn't answer within 0.01 s"):
        wires.network.client("other", 0, timeout=0.01)
