"""What a trainer says that is dealt batches, whatever its threads do first."""

import queue
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.nodes.gba.modes import make_mode
from marius_oac.nodes.shards.dispatched_rows import DispatchedRows, Dispatching
from marius_oac.nodes.shards.routed import DispatchedPlan
from marius_oac.nodes.transport.messages import (
    Applied,
    Dispatch,
    Done,
    Enter,
    Finished,
    Malformed,
    Patch,
    Pull,
    Push,
    Reserve,
    Rows,
    Token,
    Welcome,
    parse,
)  # fmt: skip
from marius_oac.pipeline.batch import Batch, Buffers
from marius_oac.runtime.channel import Closed
from marius_oac.types import BatchData
from tests.threads import PATIENCE, Watched, in_thread, joined


class Line:
    """To one node; what is sent is looked at by the test."""

    def __init__(self):
        self._sent = queue.SimpleQueue()

    def send(self, frames):
        self._sent.put(parse([bytes(frame) for frame in frames]))

    def next(self):
        return self._sent.get(timeout=PATIENCE)

    def said(self):
        message = self.next()
        return type(message), getattr(message, "batch_index", None)

    def silent(self):
        return self._sent.empty()


@pytest.fixture
def make_rows():
    """`make_rows(window)` -> the rows of a trainer, and its lines to two nodes; at the end nobody waits any more."""
    made = []

    def make(*about):
        made.append(rows_over(*about))
        return made[-1]

    yield make
    for rows, _ in made:
        rows.fail(Closed("the test"))


def rows_over(window, stop=lambda: False):
    lines = [Line(), Line()]
    dispatching = Dispatching(
        make_mode("gba", 1, 2, 1), 2, [0, 0, 0], [0, 1], SimpleNamespace(handed=lambda: None), None, window
    )
    source = SimpleNamespace(connections=lines, formats=[], bytes_sent=0, factor=lambda plan: 1.0, finish=lambda: None)
    rows = DispatchedRows(source, 10, stop, dispatching)
    rows._changed = Watched()
    return rows, lines


def batch(place, number):
    plan = DispatchedPlan(10 + place, (), BatchData(share=0.5), 1, number=number)
    return Batch(plan, staging=Buffers((), (), ()), loss=0.5)


def test_batches_of_a_window_ask_one_after_the_other(make_rows):
    rows, (line, other) = make_rows(2)
    second = in_thread(lambda: rows.read(batch(1, 27)))
    rows._changed.parked()
    first = in_thread(lambda: rows.read(batch(0, 23)))
    assert line.said() == (Enter, 23)
    rows.take(0, Token(23, 4))
    assert {line.said(), line.said()} == {(Pull, 23), (Enter, 27)}
    assert other.said() == (Pull, 23)
    rows.fail(Closed("the test"))
    assert all(isinstance(joined(*each), Closed) for each in (first, second))


def test_no_more_batches_than_the_window_has_are_between_pull_and_push(make_rows):
    rows, (line, other) = make_rows(1)
    rows._tokens[23] = 4  # it has come already
    first = in_thread(lambda: rows.read(batch(0, 23)))
    assert [line.said(), line.said(), other.said()] == [(Enter, 23), (Pull, 23), (Pull, 23)]
    for node in (0, 1):
        rows.take(node, Rows(23, [], True))
    assert joined(*first) is None
    while rows._changed._waits.acquire(blocking=False):
        pass
    second = in_thread(lambda: rows.read(batch(1, 27)))
    rows._changed.parked()
    assert line.silent()
    writing = in_thread(lambda: rows.write(batch(0, 23)))
    first, second_said = sorted((line.next() for _ in range(2)), key=lambda one: one.kind)
    assert isinstance(first, Push) and (first.batch_index, first.token) == (23, 4), "with the token that it was given"
    assert isinstance(second_said, Enter) and second_said.batch_index == 27, "it waits for no acknowledgement"
    pushed = other.next()
    assert isinstance(pushed, Push) and (pushed.batch_index, pushed.token, pushed.share) == (23, 4, 0.5)
    rows.take(0, Applied(23, step=3))
    rows.take(1, Applied(23, step=4))
    assert line.said() == (Done, 23) and joined(*writing) is None
    assert not (rows._taken or rows._pending or rows._tokens or rows._handed), "nothing is kept of it"
    rows.fail(Closed("the test"))
    assert isinstance(joined(*second), Closed)


def test_a_wish_to_stop_is_told_with_the_next_question(make_rows):
    wishes = [False, True]
    rows, (line, _) = make_rows(1, lambda: wishes.pop(0))
    for number, final in ((20, False), (20, True)):
        asking = in_thread(rows.reserve)
        message = line.next()
        assert isinstance(message, Reserve) and message.stop == final
        rows.take(0, Dispatch(number, final))
        assert joined(*asking) == (None if final else number)
    assert rows.reserve() is None and rows.stops_before(99) and line.silent()
    rows.take(0, Finished(22))
    rows.end(0)
    assert rows.reached(99) == 11


@pytest.mark.parametrize("message", [Patch(5, []), Welcome(np.zeros(0)), Reserve(), Rows(5, [], True)], ids=repr)
def test_what_no_shard_says_is_refused(make_rows, message):
    rows, _ = make_rows(1)
    with pytest.raises(Malformed):
        rows.take(0, message)


def test_after_an_error_nobody_waits(make_rows):
    rows, (line, _) = make_rows(1)
    waiting = in_thread(rows.reserve)
    assert line.said() == (Reserve, None)
    rows.fail(ValueError("a defect"))
    assert isinstance(joined(*waiting), ValueError)
    for call in (rows.reserve, lambda: rows.read(batch(0, 3)), lambda: rows.end(0)):
        with pytest.raises(ValueError, match="a defect"):
            call()


def test_each_node_is_pushed_its_slice_of_the_dense_gradient_and_the_factor(make_rows):
    rows, lines = make_rows(1)
    rows._dispatching = replace(rows._dispatching, bounds=[0, 2, 3])
    rows._tokens[23], rows._pending[23] = 4, None
    rows._handed[23] = np.array([8, 16, 24, 0.25], np.float32)
    writing = in_thread(lambda: rows.write(batch(0, 23)))
    found = []
    for node, line in enumerate(lines):
        message = line.next()
        (part,) = message.gradients
        found.append(np.frombuffer(part, np.float32).tolist())
        rows.take(node, Applied(message.batch_index, step=4))
    assert joined(*writing) is None
    assert found == [[8, 16, 0.25], [24, 0.25]]
