"""What trainers hear of a shard that can't go on, over connections as a run has them; a reply that is too large."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.config.cluster import SECRET_VARIABLE, ClusterConfig
from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.shards.connections import Connections
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.messages import Found, Kind, Welcome, parse
from tests.nodes.test_protocol_simulation import DIMENSION, OPTIMIZER, ROWS, store
from tests.nodes.wire import framed
from tests.nodes.worlds import together
from tests.threads import PATIENCE

PULL = framed(Kind.PULL, 0, [np.arange(2)])
LOOK_UP = framed(Kind.LOOK_UP, 1, [np.arange(2)])


class Broken(NumberedTable):
    """Fails where a trainer looks."""

    def __init__(self, error):
        super().__init__(store(0), OPTIMIZER)
        self.error = error

    def look_up(self, asked):
        raise self.error


def play(monkeypatch, size, table, messages):
    """The table lies on the first of so many members; the second one sends messages to it.

    Returns what the calls of each have raised.
    """
    monkeypatch.setenv(SECRET_VARIABLE, "0" * 64)
    cluster, before = ClusterConfig.local(size, size), set(threading.enumerate())
    begun = threading.Barrier(size)

    def work(group):
        node = SimpleNamespace(address="127.0.0.1")
        place = SimpleNamespace(cluster=cluster, rank=group.rank, node=node, port=0)
        with ExitStack() as stack:
            tables = None if group.rank else [table]
            source = Connections(place, group, True, 4)(stack, tables, [ValueFormat(DIMENSION)], lambda plan: 1.0)
            rows = source.begin(0, 9, None, lambda: False)
            begun.wait(PATIENCE)
            if group.rank == 1:
                for message in messages:
                    source.connections[0].send(message)
            with pytest.raises(Exception) as raised:
                rows.end(1)  # waits until the first batch is applied, which nobody pushes
            with pytest.raises((NodeLost, type(raised.value))):
                while True:
                    group.barrier()
            return raised.value

    found = together(ThreadGroup.members(size, names=[f"node{rank}" for rank in range(size)]), work)
    assert set(threading.enumerate()) <= before | {threading.current_thread()}
    return found


def test_nonsense_of_a_trainer_reaches_it_and_ends_all(monkeypatch):
    own, *others = play(monkeypatch, 3, NumberedTable(store(0), OPTIMIZER), [PULL, PULL])
    why = "node node1: it sent an invalid message: batch 0 is pulled again"
    assert isinstance(own, NodeLost) and str(own) == why
    assert [str(each) for each in others] == [f"node node0: it can't go on: {why}"] * 2
    assert all(isinstance(each, NodeLost) for each in others)


@pytest.mark.parametrize(
    "error, why",
    [
        (InputError("the table is full", "keys.memory"), "keys.memory: the table is full"),
        (ZeroDivisionError("a defect\nin a line"), "ZeroDivisionError: a defect in a line"),
    ],
)
def test_an_error_of_a_shard_reaches_all_trainers(monkeypatch, error, why):
    own, *others = play(monkeypatch, 3, Broken(error), [LOOK_UP])
    assert own is error
    assert [str(each) for each in others] == [f"node node0: it can't go on: {why}"] * 2


def test_rows_that_no_message_holds_are_a_line():
    """A pull has 8 bytes a row, its answer may have many more."""
    network, failures = Network(), []
    door = network.server("a", {0: "a"}, Limits(max_bytes=108))
    client, failed = network.client("a", 0), threading.Event()

    def on_failure(error):
        failures.append(error)
        server.fail(error)
        failed.set()

    with ShardServer(Shard([NumberedTable(store(0), OPTIMIZER)], 1), [(door, [0])], on_failure) as server:
        client.send(framed(Kind.PULL, 0, [np.arange(ROWS)]))
        with pytest.raises(NodeLost, match="node a: it can't go on: training.batch_size: batch 0: .* make batches"):
            client.receive()
        assert failed.wait(PATIENCE) and isinstance(failures[0], InputError)


def test_a_guest_is_told_of_the_run_once():
    network = Network()
    door = network.server("a", {0: "a", 1: "guest 1", 2: "guest 2"})
    early, late = network.client("a", 1), network.client("a", 2)

    def hears(elastic_worker):
        message = parse(elastic_worker.receive())
        return bytes(message.run) if isinstance(message, Welcome) else type(message)

    def fail(error):
        server.fail(error)

    with ShardServer(Shard([NumberedTable(store(0), OPTIMIZER)], 1), [(door, [0, 1, 2])], fail, 1) as server:
        early.send(framed(Kind.JOIN, 0))
        early.send(LOOK_UP)
        assert hears(early) is Found  # it has been heard, and must wait
        server.welcome(b"a run")
        assert hears(early) == b"a run"
        late.send(framed(Kind.JOIN, 0))
        assert hears(late) == b"a run"
        server.welcome(b"the run, again")
        for elastic_worker in (early, late):
            elastic_worker.send(LOOK_UP)
            assert hears(elastic_worker) is Found


@pytest.mark.parametrize("failing", [0, 1])
def test_an_endpoint_that_can_not_be_closed_leaves_no_thread(monkeypatch, failing):
    network, before = Network(), set(threading.enumerate())
    doors = [network.server(name, {0: name}) for name in "ab"]

    def close(closed=doors[failing].close):
        closed()
        raise OSError("can't be closed")

    monkeypatch.setattr(doors[failing], "close", close)
    with (
        pytest.raises(OSError, match="can't be closed"),
        ShardServer(Shard([], 1), [(door, [0]) for door in doors], print),
    ):
        assert len(set(threading.enumerate()) - before) == 2
    assert set(threading.enumerate()) == before
