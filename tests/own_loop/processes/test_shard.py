"""What a process takes from others for its rows: nothing that is no step, and nothing that differs."""

from dataclasses import replace

import numpy as np
import pytest

import marius_oac.torch as mt
from marius_oac.errors import InputError
from marius_oac.nodes.transport.messages import Kind, Malformed, parse
from marius_oac.torch.processes.shard import NO_STEP, LoopShard, LoopTable, Stepped, _check_alike
from marius_oac.torch.tables import Table
from tests.nodes.wire import framed

STEP = Stepped(0.1, 3, np.arange(6, dtype=np.float32).reshape(2, 3))


def frames(step, about=None, gradients=None):
    about = step.about if about is None else np.array(about, np.float64)
    return [about.tobytes(), step.gradients.tobytes() if gradients is None else gradients]


@pytest.mark.parametrize("optimizer", [mt.Adam, mt.SGD, mt.Adagrad])
def test_rows_that_were_not_looked_up_stay_as_they_are(optimizer):
    """Also where their averages would move them."""
    by = optimizer(mt.Embedding(2), lr=0.1)
    table = Table("items", 2, 1.0, 0, by.config, 10)
    table.begin_with(np.ones((3, 2), np.float32))
    shard, rows = LoopTable(table, by), np.array([0, 2])
    shard.step(rows, np.ones((2, 3), np.float32), 1, Stepped(0.1, 1, np.empty((0, 3))))
    before = table.items(0, 3)[1]
    shard.step(rows, np.array([[1, 1, 1], [0, 0, 0]], np.float32), 2, Stepped(0.1, 2, np.empty((0, 3))))
    after = table.items(0, 3)[1]
    assert (after[0] != before[0]).all() and np.array_equal(after[1:], before[1:])
    assert (before[2] < 1).all() and (before[1] == 1).all()


def test_a_process_that_has_pushed_a_batch_may_pull_one_more():
    by = mt.SGD(mt.Embedding(2), lr=0.1)
    shard = LoopShard([LoopTable(Table("items", 2, 1.0, 0, by.config, 10), by)], 2, ahead=2)
    keys = [np.zeros(1, np.uint16), np.array([5]), np.zeros(1, np.uint32)]
    step = Stepped(0.1, 1, np.ones((1, 3), np.float32))
    for batch in range(6):
        for rank in range(2):
            assert shard.handle(rank, parse(framed(Kind.PULL, batch, keys)))
        for rank in range(2):
            shard.handle(rank, parse(framed(Kind.PUSH, batch, [step.about, step.gradients], share=0.5)))
    assert shard.applied == 5 and not shard._pulls and not shard._pushes


@pytest.mark.parametrize("step", [STEP, replace(STEP, rate=0.0), NO_STEP])
def test_a_step_comes_as_it_was_sent(step):
    found = Stepped.parse(frames(step), 2, 2)
    assert (found.rate, found.number) == (step.rate, step.number)
    assert np.array_equal(found.gradients.ravel(), step.gradients.ravel()) and found.gradients.shape[1] == 3


@pytest.mark.parametrize(
    "about",
    [
        (-0.1, 3, 0),
        (np.inf, 3, 0),
        (np.nan, 3, 0),
        (0.1, -1, 0),
        (0.1, 1.5, 0),
        (0.1, np.nan, 0),
        (0.1, 2.0**53, 0),
        (0.1, 3, -1),
        (0.1, 3, np.inf),
        (0.1, 3, np.nan),
        (0.1,),
        (1, 2),
        (1, 2, 3, 4),
    ],
)
def test_what_is_no_step_is_refused(about):
    with pytest.raises(Malformed):
        Stepped.parse(frames(STEP, about), 2, 2)


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_of_another_number_of_rows_are_refused(count):
    with pytest.raises(Malformed):
        Stepped.parse(frames(STEP), count, 2)


def test_who_has_not_stepped_sends_no_gradients():
    with pytest.raises(Malformed):
        Stepped.parse(frames(STEP, (0.0, 0)), 2, 2)


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ([STEP, STEP], None),
        ([NO_STEP, NO_STEP], None),
        ([STEP, STEP, NO_STEP], "rank 0 has updated rows and rank 2 has not: it called no step"),
        ([NO_STEP, NO_STEP, STEP], "rank 2 has updated rows and rank 0 has not: it called no step"),
        ([STEP, replace(STEP, rate=0.2)], "the learning rate is 0.1 on rank 0 and 0.2 on rank 1"),
        ([STEP, replace(STEP, decay=0.5)], "the weight decay is 0 on rank 0 and 0.5 on rank 1"),
        ([STEP, STEP, replace(STEP, number=4)], "it is step 3 on rank 0 and 4 on rank 2"),
    ],
)
def test_processes_that_differ_are_named(others, line):
    if line is None:
        return _check_alike("items", 7, others)
    with pytest.raises(InputError) as error:
        _check_alike("items", 7, others)
    assert str(error.value).startswith("batch 7, table 'items': ") and line in str(error.value)


def test_rows_that_were_looked_up_decay():
    by = mt.SGD(mt.Embedding(2), lr=0.1)
    table = Table("items", 2, 1.0, 0, by.config, 10)
    table.begin_with(np.ones((3, 2), np.float32))
    about = Stepped.parse([np.array([0.1, 1, 0.5]).tobytes(), np.zeros((1, 3), np.float32).tobytes()], 1, 2)
    LoopTable(table, by).step(np.array([0, 2]), np.array([[1, 1, 1], [0, 0, 0]], np.float32), 1, about)
    assert np.allclose(table.items(0, 3)[1], [[0.85] * 2, [1] * 2, [1] * 2])
