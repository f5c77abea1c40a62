"""What a trainer hears, whatever it is: it is taken, or refused as what no correct peer sends."""

import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import NodeLost
from marius_oac.nodes.gba.modes import make_mode
from marius_oac.nodes.shards.dispatched_rows import DispatchedRows, Dispatching
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.no_rows import NoRows
from marius_oac.nodes.shards.remote_rows import Pending, RemoteRows
from marius_oac.nodes.shards.routed import DispatchedPlan
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.messages import Applied, Dense, Fill, Found, Malformed, Patch, Refuse, Rows, parse
from marius_oac.pipeline.batch import Batch, Buffers
from marius_oac.runtime.channel import Closed
from marius_oac.storage.placement import Route
from marius_oac.types import BatchData
from tests.nodes.test_messages import ANY
from tests.threads import PATIENCE

ROUTE = Route(np.array([2, 0, 1]), np.array([0, 2, 3]), ())
"""Of three rows: the first node has the last and the first one, the second node the other."""


def heard_by(make, lockstep=True, **about):
    """The exchange of two nodes, which has pulled batch 7, and its values, float32 [3, 2]."""
    source = SimpleNamespace(connections=[None] * 2, formats=[ValueFormat(2)], lockstep=lockstep)
    source.finish = lambda: None
    rows = make(source, 7, lambda: False, **about)
    values = np.zeros((3, 2), np.float32)
    batch = Batch(DispatchedPlan(7, (np.arange(3),), BatchData(), 3, [ROUTE], number=7))
    batch.staging = Buffers((), (np.zeros(3, np.int64),), (values,))
    rows._pending[7] = Pending(batch, {0, 1}, {0, 1} if lockstep else set())
    return rows, values


def dispatched(dense):
    bounds = [0, 2, 3] if dense else [0, 0, 0]
    dispatching = Dispatching(make_mode("gba", 1, 2, 1), 2, bounds, [0, 1], None, None)
    rows, values = heard_by(DispatchedRows, False, dispatching=dispatching)
    rows._values[7] = np.zeros(bounds[-1], np.float32)
    return rows, values


def test_rows_and_news_of_them_are_where_they_belong():
    rows, values = heard_by(RemoteRows)
    rows.take(0, Rows(7, [np.array([[1, 2], [3, 4]], np.float32)], False, 50))
    rows.take(1, Rows(7, [np.array([[5, 6]], np.float32)], True))
    assert values.tolist() == [[3, 4], [5, 6], [1, 2]] and rows.stop_at == 50
    assert rows._pending[7].patches == {0} and not rows._pending[7].rows and rows._applied == [6, 6]
    rows.take(0, Patch(7, [np.array([1]), np.array([[8, 9]], np.float32)], 40))
    (((places, newer),),) = rows._pending[7].patch
    assert (places.tolist(), newer.tolist()) == ([0], [[8, 9]]) and not rows._pending[7].patches
    assert rows.stop_at == 40
    rows.take(1, Applied(8, 45))
    assert rows._applied == [6, 8] and rows.stop_at == 40 and rows._unapplied == -1


def test_a_patch_says_that_the_batch_before_is_applied():
    rows, _ = heard_by(RemoteRows)
    rows._applied = [2, 2]
    rows.take(0, Rows(7, [np.zeros((2, 2), np.float32)], False))
    assert rows._applied == [2, 2]
    rows.take(0, Patch(7, [b"", b""]))
    assert rows._applied == [6, 2]


GOOD = [np.ones((2, 2), np.float32), np.ones(2, np.float32)]
WRONG = {
    "nothing": [],
    "no dense parameters": GOOD[:1],
    "too many of them": [GOOD[0], np.ones(3, np.float32)],
    "no rows": GOOD[1:],
    "a row too few": [GOOD[0][:1], GOOD[1]],
    "a table too many": [GOOD[0], *GOOD],
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_were_not_asked_for_are_refused(name):
    rows, values = dispatched(dense=True)
    with pytest.raises(Malformed):
        rows.take(0, Rows(7, WRONG[name], True))
    assert rows._pending[7].rows == {0, 1} and not values.any()
    rows.take(0, Rows(7, GOOD, True))
    assert rows._pending[7].rows == {1} and rows._values[7].tolist() == [1, 1, 0] and values[[0, 2]].all()


def test_rows_that_come_again_are_refused_also_when_they_are_used():
    rows, _ = dispatched(dense=True)
    rows.take(0, Rows(7, GOOD, True))
    del rows._values[7]
    with pytest.raises(Malformed):
        rows.take(0, Rows(7, GOOD, True))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), ANY), min_size=1, max_size=6))
def test_a_trainer_refuses_in_no_other_way(said):
    made = [dispatched(True), dispatched(False), heard_by(RemoteRows), heard_by(RemoteRows, False)]
    made.append((NoRows(made[0][0]._source, 7), None))
    for node, message in said:
        heard = parse([bytes(frame) for frame in message.frames()])
        for rows, _ in made:
            try:
                rows.take(node, heard)
            except Malformed as error:
                assert len(str(error).splitlines()) == 1


class Line:
    """A connection to a node that answers as `answer` says."""

    def __init__(self, answer, name="b"):
        self._answer, self._answers, self.name = answer, queue.SimpleQueue(), name
        self._closed, self._watcher = False, None

    def send(self, frames):
        self._answers.put([bytes(frame) for frame in self._answer(parse(frames)).frames()])
        self._tell()

    def attach(self, watcher):
        self._watcher = watcher

    def detach(self):
        self._watcher = None

    def receive_nowait(self):
        if self._answers.empty() and self._closed:
            raise Closed("the test")
        if self._answers.empty():
            return None
        self._tell()
        return self._answers.get()

    def close(self):
        self._closed = True
        self._tell()

    def _tell(self):
        if (watcher := self._watcher) is not None:
            watcher.wake()


VALUES, BATCHES = np.arange(4, dtype=np.float32), np.zeros(1, np.int64)
ANSWERS = {
    "no word of which are known": (VALUES, None),
    "a row too few": (VALUES[:2], np.ones(2, np.bool_)),
    "one that is not said to be known": (VALUES, np.ones(1, np.bool_)),
}


@pytest.mark.parametrize("name", [None, *ANSWERS])
def test_an_answer_to_another_question_is_refused(name):
    answer = ANSWERS.get(name, (VALUES, np.array([True, False])))
    line = Line(lambda asked: Found(asked.number, *answer, asked.table))
    route = Route(np.array([1, 0]), np.array([0, 2]), (np.arange(2),))
    with RemoteSource([line], [ValueFormat(2)], True, 4, lambda *stretch: None, lambda: None) as source:
        if name is None:
            values, known = source.look_up(0, route)
            assert values.tolist() == [[2, 3], [0, 1]] and known.tolist() == [False, True]
        else:
            with pytest.raises(NodeLost, match="^node b: it sent an invalid message: .* bytes are not"):
                source.look_up(0, route)


@pytest.mark.parametrize(
    "answer", [Applied(7), Rows(7, [], False), Found(-1, VALUES)], ids=lambda answer: answer.kind.name
)
def test_a_node_that_says_what_none_says_is_lost(answer):
    """In one line, to whoever waits for it."""
    lines = [Line(lambda asked: Found(asked.number, VALUES), "a"), Line(lambda asked: answer)]
    with RemoteSource(lines, [ValueFormat(2)], True, 4, lambda *stretch: None, lambda: None) as source:
        source.exchange = NoRows(source, 7)
        with pytest.raises(NodeLost, match="^node b: it sent an invalid message: .*(ROWS|APPLIED|number: -1)[^\n]*$"):
            source.dense_states()
        assert source.stopped.is_set() and isinstance(source.error, NodeLost)


def test_a_trainer_receives_while_its_own_shard_settles_what_a_lost_worker_had():
    """The shard may wait until this trainer receives; all nodes have one thread, which must not wait for the shard."""
    line, refusals = Line(lambda asked: Found(asked.number, VALUES), "a"), Line(lambda asked: Refuse(1, BATCHES))
    begun, go_on, told = threading.Event(), threading.Event(), []

    def reconcile(message):
        begun.set()
        assert go_on.wait(PATIENCE)
        told.append(message.worker)

    source = RemoteSource([line, refusals], [ValueFormat(2)], True, 4, lambda *stretch: None, lambda: None)
    source.reconcile = reconcile
    with source:
        refusals.send(Dense(1).frames())
        assert begun.wait(PATIENCE)
        refusals._answer = lambda asked: Found(asked.number, VALUES)
        assert len(source.dense_states()) == 2 and not told
        go_on.set()
    assert told == [1] and not any(thread.name in ("nodes", "reconciliation") for thread in threading.enumerate())


def test_an_error_of_one_node_is_told_and_the_others_are_received_from():
    lines = [Line(lambda asked: Found(asked.number, VALUES), "a"), Line(lambda asked: Applied(7), "b")]
    with RemoteSource(lines, [ValueFormat(2)], True, 4, lambda *stretch: None, lambda: None) as source:
        source.exchange = NoRows(source, 7)
        with pytest.raises(NodeLost, match="^node b"):
            source.dense_states()
        source.wait_until_over(1, PATIENCE)
        before = source.bytes_received
        lines[0].send(Dense(1).frames())
        lines[0].close()
        source.wait_until_over(0, PATIENCE)
        assert source.bytes_received > before
        assert [type(error) for error in source.until_all_are_over()] == [NodeLost, Closed]


@pytest.mark.parametrize("message", [Refuse(1, np.zeros(1, np.int64)), Fill(1, np.zeros(1, np.int64))], ids=type)
def test_nobody_is_recovered_where_nothing_is_dispatched(message):
    server = ShardServer(Shard([], 1), [], print)
    with pytest.raises(Malformed, match=f"{message.kind.name} is not sent to this shard"):
        server.reconcile(message, 0)
