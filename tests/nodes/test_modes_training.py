"""A small model of embeddings and a network, trained in some mode by workers of equal speed: gba is sync."""

from functools import cache

import numpy as np
import pytest
import torch

from marius_oac.nodes.gba.aggregator import DenseAggregator, RowAggregator
from marius_oac.nodes.gba.dispatcher import WAIT, Dispatcher
from marius_oac.nodes.gba.modes import make_mode

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, DIMENSION, FIELDS, HIDDEN = 60, 4, 3, 8
WORKERS, LOCAL, STEPS, RATE = 4, 8, 200, 0.05
GLOBAL = WORKERS * LOCAL
SIZES = (FIELDS * DIMENSION * HIDDEN, HIDDEN, HIDDEN)


def examples():
    draw = np.random.default_rng(5)
    rows = (ROWS * draw.random((STEPS * GLOBAL, FIELDS)) ** 2).astype(np.int64)  # some rows are frequent
    return rows, (rows.sum(1) + draw.integers(0, 40, len(rows)) > 75).astype(np.float32)


EXAMPLES = examples()


class Model:
    """Adagrad by hand, float32, for everything."""

    def __init__(self):
        draw = np.random.default_rng(1)
        self.dense = draw.normal(0, 0.3, sum(SIZES)).astype(np.float32)
        self.rows = draw.normal(0, 0.3, (ROWS, DIMENSION)).astype(np.float32)
        self.squares = np.full_like(self.dense, 0.1), np.full_like(self.rows, 0.1)

    def gradient(self, first, end):
        """Of the mean loss over some examples: dense; the rows among them, ascending; theirs."""
        ids, labels = EXAMPLES[0][first:end], EXAMPLES[1][first:end]
        unique, index = np.unique(ids, return_inverse=True)
        dense = torch.tensor(self.dense, requires_grad=True)
        values = torch.tensor(self.rows[unique], requires_grad=True)
        first_layer, bias, last = torch.split(dense, SIZES)
        inputs = values[torch.tensor(index.reshape(ids.shape))].reshape(len(ids), -1)
        scores = torch.relu(inputs @ first_layer.reshape(-1, HIDDEN) + bias) @ last
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor(labels))
        loss.backward()
        return dense.grad.numpy(), unique, values.grad.numpy()

    def apply(self, dense, rows, gradients):
        self.squares[0][:] += dense**2
        self.dense -= RATE * dense / np.sqrt(self.squares[0])
        self.squares[1][rows] += gradients**2
        self.rows[rows] -= RATE * gradients / np.sqrt(self.squares[1][rows])


@cache
def whole_batches():
    """The plain way: a step by the gradient of the mean loss over the global batch."""
    model = Model()
    for step in range(STEPS):
        model.apply(*model.gradient(step * GLOBAL, (step + 1) * GLOBAL))
    return model


@cache
def local_batches():
    """The same, with a row's gradients averaged over those local batches that have it."""
    model = Model()
    for step in range(STEPS):
        parts = [model.gradient(step * GLOBAL + n * LOCAL, step * GLOBAL + (n + 1) * LOCAL) for n in range(WORKERS)]
        rows = np.unique(np.concatenate([part[1] for part in parts]))
        each = [[part[2][part[1] == row][0] for part in parts if row in part[1]] for row in rows]
        averages = np.array([np.mean(found, axis=0) for found in each], np.float32)
        model.apply(np.mean([part[0] for part in parts], axis=0), rows, averages)
    return model


def trained(kind, rows_over="holders", local=LOCAL, slow=0, **rules):
    """In one mode to the end."""
    mode = make_mode(kind, WORKERS, GLOBAL, local, rows_over=rows_over, **rules)
    dispatcher = Dispatcher(mode, 0, STEPS * GLOBAL // local)
    return train(Model(), np.full(ROWS, -1, np.int64), dispatcher, local, slow)


def train(model, tags, dispatcher, local, slow=0, until=STEPS):
    """In rounds: all workers ask, then all push, in any order; worker 0 in one of `slow` + 1 rounds only.

    From step `until` on nothing more is dealt than what makes whole global batches.
    """
    draw, start = np.random.default_rng(2), (dispatcher.step, dispatcher.next)
    dense = DenseAggregator(dispatcher.mode, sum(SIZES), *start)
    rows = RowAggregator(dispatcher.mode, DIMENSION, tags.__getitem__, *start)
    held, ended, turn = {}, set(), 0

    def take(average, found):
        if average is not None:
            model.apply(average, *found)
            tags[found[0]] = rows.step - 1
            dispatcher.stepped(dense.step)
            if dense.step >= until:
                dispatcher.stop(GLOBAL // local)

    while len(ended) < WORKERS:
        for worker in set(range(WORKERS)) - ended - set(held):
            dispatch = dispatcher.ask(worker)
            if dispatch is None:
                ended.add(worker)
            elif dispatch is not WAIT:
                held[worker] = dispatch, model.gradient(dispatch.batch * local, (dispatch.batch + 1) * local)
        for worker in draw.permutation(list(held)):
            if worker or turn % (slow + 1) == slow:
                dispatch, (own, mine, parts) = held.pop(int(worker))
                take(dense.add(*dispatch, own), rows.add(*dispatch, mine, parts))
                dispatcher.done(int(worker), dispatch.batch)
        turn += 1
    take(dense.flush(), rows.flush())
    return model, dense, rows


def distance(one, other):
    return max(np.abs(one.dense - other.dense).max(), np.abs(one.rows - other.rows).max())


@pytest.mark.parametrize("kind", ["gba", pytest.param("sync", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("rows_over", "plain"), [("holders", local_batches), ("gradients", whole_batches)])
def test_with_equal_speeds_it_is_synchronous_training(kind, rows_over, plain):
    model, dense, rows = trained(kind, rows_over)
    assert dense.step == rows.step == STEPS
    assert dense.metrics() == {"gradients": STEPS * WORKERS, "dropped": 0, "staleness_sum": 0, "staleness_max": 0}
    assert distance(model, plain()) < 1e-5
    assert distance(model, Model()) > 0.1


@pytest.mark.parametrize("local", [4, 16])
def test_gba_of_other_local_batches_is_synchronous_training_if_nothing_is_stale(local):
    """M = 8 or 2 gradients of 4 workers: sync waits for the places of a step, whoever computes them."""
    model, dense, _ = trained("sync", "gradients", local)
    assert dense.step == STEPS and distance(model, whole_batches()) < 1e-5


def test_only_gba_and_sync_are():
    plain = local_batches()
    for kind in ("async", "bsp", "hop-bs", "hop-bw"):
        assert distance(trained(kind, b2=3)[0], plain) > 1e-3, kind
    assert distance(whole_batches(), plain) > 1e-3


def test_sync_stays_what_it_is_when_a_worker_is_slow_and_gba_goes_on():
    plain = local_batches()
    model, dense, _ = trained("sync", slow=5)
    assert distance(model, plain) < 1e-5
    model, dense, rows = trained("gba", slow=5, threshold=1)
    assert dense.step == STEPS and 1e-3 < distance(model, plain) < 1
    assert dense.metrics()["staleness_max"] >= 2 and dense.metrics()["dropped"] > 0
    assert 0 < rows.metrics()["dropped"] / rows.metrics()["gradients"] < 0.5


def test_switching_to_and_fro_changes_nothing_where_nothing_is_stale():
    """sync and gba with local batches of 4, 8 and 16: the data go on where they were, and so do steps and tags."""
    model, tags = Model(), np.full(ROWS, -1, np.int64)
    examples_before, step = 0, 0
    for kind, local, until in (("sync", 8, 50), ("gba", 4, 90), ("sync", 16, 91), ("gba", 8, STEPS)):
        mode = make_mode(kind, WORKERS, GLOBAL, local, rows_over="gradients")
        dispatcher = Dispatcher(mode, examples_before // local, STEPS * GLOBAL // local, step)
        _, dense, _ = train(model, tags, dispatcher, local, until=until)
        assert dispatcher.finished and dispatcher.next * local % GLOBAL == 0 and dense.metrics()["dropped"] == 0
        assert until <= dense.step <= until + 1 and dispatcher.next * local == dense.step * GLOBAL
        examples_before, step = dispatcher.next * local, dense.step
    assert step == STEPS and distance(model, whole_batches()) < 1e-5
    assert (tags.max(), tags.min() >= 0) == (STEPS - 1, True)
