"""Trainers and shards under random interleavings: messages are delivered one at a time, in any order that connections
allow. Whatever the order, the rows are those of one batch after the other."""

import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import KeyedTable, NumberedTable
from marius_oac.nodes.transport.messages import Applied, Kind, Malformed, Patch, Pull, Push, Rows, array, parse
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.table import KeyTable
from marius_oac.storage.memory import MemoryStore
from tests.nodes.wire import framed, tell

DIMENSION, ROWS = 3, 7
RATE, EPSILON = 0.1, 1e-10
OPTIMIZER = RowOptimizer(OptimizerConfig(learning_rate=RATE, epsilon=EPSILON))


def store(node, rows=ROWS, capacity=ROWS):
    initial = RowInitial("normal", 0.1, 3, f"node {node}")
    return MemoryStore("rows", rows, RowLayout(DIMENSION, DIMENSION), initial, capacity)


def gradient(values, batch, trainer):
    return (values * np.float32(0.5) + np.float32(0.01 * (batch + 1) * (trainer + 1))).astype(np.float32)


class Trainer:
    """Pulls `ahead` batches before it computes, as the exchange does."""

    def __init__(self, rank, batches, shards, ahead):
        self.rank, self.batches, self.shards, self.ahead = rank, batches, shards, ahead
        self.pulled = self.computed = 0
        self.values, self.missing = {}, {}
        self.stops = []

    def asked(self, part):
        """The arrays of a pull."""
        return [part]

    def size(self, part):
        """Values that it gets."""
        return part.size

    def can_pull(self):
        return self.pulled < len(self.batches) and self.pulled < self.computed + self.ahead

    def pull(self):
        number = self.pulled
        self.pulled += 1
        self.values[number] = [None] * self.shards
        self.missing[number] = set(range(self.shards))
        for shard, rows in enumerate(self.batches[number]):
            yield shard, Pull(number, self.asked(rows))

    def can_compute(self):
        return self.computed < self.pulled and not self.missing[self.computed]

    def compute(self, share):
        number = self.computed
        self.computed += 1
        for shard, values in enumerate(self.values.pop(number)):
            yield shard, Push(number, [gradient(values, number, self.rank)], share)

    def take(self, shard, frames):
        message = parse(frames)
        self.stops.append(message.stop_at)
        match message:
            case Rows(number, (values,), final):
                count = self.size(self.batches[number][shard])
                self.values[number][shard] = array(values, np.float32, count, DIMENSION).copy()
                if final:
                    self.missing[number].remove(shard)
            case Patch(number, (places, values)):
                places = array(places, np.int64, -1)
                self.values[number][shard][places] = array(values, np.float32, places.size, DIMENSION)
                self.missing[number].remove(shard)
            case other:
                assert isinstance(other, Applied)


def simulate(batches, shards, shares, ahead, choose, make_trainer=Trainer, tables=None, parts=None):
    """Runs to the end; `choose` picks one of the things that can happen next. Returns the shards' stores."""
    tables = tables or [NumberedTable(store(node), OPTIMIZER) for node in range(shards)]
    stores = [table.store for table in tables]
    nodes = [Shard([each], len(batches), parts=parts) for each in tables]
    trainers = [make_trainer(rank, mine, shards, ahead) for rank, mine in enumerate(batches)]
    up = {(rank, shard): deque() for rank in range(len(batches)) for shard in range(shards)}
    down = {connection: deque() for connection in up}

    def send(rank, messages):
        for shard, message in messages:
            up[rank, shard].append([bytes(frame) for frame in message.frames()])

    while True:
        events = [("up", each) for each, queue in up.items() if queue]
        events += [("down", each) for each, queue in down.items() if queue]
        events += [("pull", rank) for rank, trainer in enumerate(trainers) if trainer.can_pull()]
        events += [("compute", rank) for rank, trainer in enumerate(trainers) if trainer.can_compute()]
        if not events:
            break
        kind, place = choose(events)
        if kind == "up":
            for peer, message in tell(nodes[place[1]], place[0], up[place].popleft()):
                down[peer, place[1]].append([bytes(frame) for frame in message.frames()])
        elif kind == "down":
            trainers[place[0]].take(place[1], down[place].popleft())
        elif kind == "pull":
            send(place, trainers[place].pull())
        else:
            send(place, trainers[place].compute(shares[place]))
    assert all(trainer.computed == len(mine) for trainer, mine in zip(trainers, batches, strict=True)), "stuck"
    return stores


def bits(stores):
    return [each.fingerprint() for each in stores]


def one_after_the_other(batches, shards, shares):
    """The same by hand: values float64 [ROWS, D] of each shard."""
    values = [next(store(node).blocks()).rows[:, :DIMENSION].astype(np.float64) for node in range(shards)]
    squares = [np.zeros_like(each) for each in values]
    for number in range(len(batches[0])):
        for shard in range(shards):
            total = np.zeros_like(values[shard])
            for rank, mine in enumerate(batches):
                rows = mine[number][shard]
                total[rows] += shares[rank] * gradient(values[shard][rows].astype(np.float32), number, rank)
            touched = total.any(1)
            squares[shard][touched] += total[touched] ** 2
            values[shard][touched] -= RATE * total[touched] / (np.sqrt(squares[shard][touched]) + EPSILON)
    return values


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_any_interleaving_has_the_rows_of_one_batch_after_the_other(data):
    trainers, shards = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    ahead, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    seed = data.draw(st.integers(0, 2**32))
    draw = np.random.default_rng(seed)
    batches = [
        [[draw.permutation(ROWS)[: draw.integers(0, ROWS + 1)] for _ in range(shards)] for _ in range(count)]
        for _ in range(trainers)
    ]
    shares = [1 / trainers] * trainers
    found = simulate(batches, shards, shares, ahead, random.Random(seed).choice)
    plain = simulate(batches, shards, shares, 1, lambda events: events[0])
    assert bits(found) == bits(plain)
    for each, values in zip(found, one_after_the_other(batches, shards, shares), strict=True):
        assert np.allclose(next(each.blocks()).rows[:, :DIMENSION], values, atol=1e-5)


def test_the_simulation_would_find_rows_that_were_not_patched(monkeypatch):
    real = Shard._news

    def forgetful(self, batch_index):
        empty = [np.zeros(0, np.int64), np.zeros((0, DIMENSION), np.float32)]
        return [
            (to, Patch(message.batch_index, empty) if isinstance(message, Patch) else message)
            for to, message in real(self, batch_index)
        ]

    monkeypatch.setattr(Shard, "_news", forgetful)
    rows = np.arange(ROWS)
    batches = [[[rows]] * 6, [[rows]] * 6]
    found = simulate(batches, 1, [0.5, 0.5], 3, random.Random(1).choice)
    monkeypatch.undo()
    assert bits(found) != bits(simulate(batches, 1, [0.5, 0.5], 3, random.Random(1).choice))


def keyed(after=1):
    return KeyedTable(KeyTable(store(0, 0, 100), admit_after=after), OPTIMIZER)


def ask(keys, after=1):
    asked = [np.zeros(len(keys), np.uint16), np.array(keys, np.int64), np.zeros(len(keys), np.uint32)]
    return asked if after == 1 else [*asked, np.ones(len(keys), np.uint32)]


def run_keyed(order, after):
    """Two trainers pull batch 0 in the given order, then push; returns the table."""
    table = keyed(after)
    shard = Shard([table], 2)
    asked = [ask([5, 9, 7], after), ask([9, 11], after)]
    for rank in order:
        tell(shard, rank, framed(Kind.PULL, 0, asked[rank]))
    for rank in reversed(order):
        part = np.full((len(asked[rank][0]), DIMENSION), rank + 1, np.float32)
        tell(shard, rank, framed(Kind.PUSH, 0, [part], share=0.5))
    return table


@pytest.mark.parametrize("after", [1, 2])
def test_new_keys_get_rows_in_the_order_of_batch_and_trainer(after):
    first, second = run_keyed([0, 1], after), run_keyed([1, 0], after)
    assert first.keys.fingerprint() == second.keys.fingerprint()
    assert first.store.fingerprint() == second.store.fingerprint()
    assert len(first.keys) == (4 if after == 1 else 2)  # of those seen once: the row that they share


def test_a_key_is_admitted_when_it_was_seen_so_often_also_within_a_slice():
    table = keyed(3)
    shard = Shard([table], 1)
    for batch, times in enumerate(([3, 1, 0], [0, 1, 2])):
        pull = [*ask([5, 9, 7]), np.array(times, np.uint32)]
        tell(shard, 0, framed(Kind.PULL, batch, pull))
        own = (table.keys.find(*ask([5, 9, 7])) >= 0).tolist()
        assert own == [True, False, False]
    tell(shard, 0, framed(Kind.PULL, 2, [*ask([5, 9, 7]), np.ones(3, np.uint32)]))
    assert (table.keys.find(*ask([5, 9, 7])) >= 0).all()


@pytest.mark.parametrize("counts", [[], [np.ones(2, np.uint32)], [np.ones(1, np.int64)], [np.ones(1, np.uint32)] * 2])
def test_counts_that_do_not_fit_are_refused(counts):
    shard = Shard([keyed(2)], 1)
    with pytest.raises(Malformed):
        tell(shard, 0, framed(Kind.PULL, 0, [*ask([5]), *counts]))
    tell(shard, 0, framed(Kind.PULL, 0, [*ask([5]), np.ones(1, np.uint32)]))


def test_pushes_are_added_up_by_row_and_share():
    table = run_keyed([0, 1], 1)
    rows = table.keys.find(*ask([5, 9, 11]))
    state = next(table.store.blocks()).rows[rows, DIMENSION:]
    assert np.allclose(state[:, 0], [0.5**2, 1.5**2, 1.0])


def test_freely_a_push_is_applied_at_once():
    table = keyed()
    shard = Shard([table], 2, lockstep=False)
    for rank, batch in ((1, 4), (0, 2)):
        ((peer, rows),) = tell(shard, rank, framed(Kind.PULL, batch, ask([5])))
        assert peer == rank and rows.final
    for rank, batch in ((0, 2), (1, 4)):
        part = [np.ones((1, DIMENSION), np.float32)]
        ((peer, answer),) = tell(shard, rank, framed(Kind.PUSH, batch, part, share=0.5))
        assert (peer, answer.kind) == (rank, Kind.APPLIED)
    assert np.allclose(next(table.store.blocks()).rows[0, DIMENSION:], 2.0)


def freely(shard, rank, batch, share=0.5):
    tell(shard, rank, framed(Kind.PULL, batch, ask([5])))
    tell(shard, rank, framed(Kind.PUSH, batch, [np.ones((1, DIMENSION), np.float32)], share=share))


def test_freely_a_timestamp_is_that_of_the_batch():
    """Not the number of pushes: with those Adam's step would go back where a run goes on after a checkpoint."""
    table = keyed()
    shard = Shard([table], 2, lockstep=False)
    for rank in (0, 1):
        for batch in range(3):
            freely(shard, rank, batch)
    assert table.timestamps(np.array([0])).tolist() == [2]


def test_freely_an_example_that_is_another_trainers_counts_for_nothing():
    table = keyed()
    shard = Shard([table], 2, lockstep=False)
    freely(shard, 0, 0, share=0.0)
    assert np.allclose(next(table.store.blocks()).rows[0, DIMENSION:], 0.0)
    freely(shard, 0, 1, share=1.0)
    assert np.allclose(next(table.store.blocks()).rows[0, DIMENSION:], 1.0)


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_trainer_that_pulls_and_never_pushes_fills_no_memory(lockstep):
    shard = Shard([keyed()], 2, lockstep, ahead=5)
    for batch in range(5):
        tell(shard, 1, framed(Kind.PULL, batch, ask([5])))
    with pytest.raises(Malformed, match="too far ahead"):
        tell(shard, 1, framed(Kind.PULL, 5, ask([5])))
    tell(shard, 0, framed(Kind.PULL, 0, ask([5])))
    with pytest.raises(Malformed, match="too far ahead"):
        tell(shard, 0, framed(Kind.PULL, 2**41, ask([5])))


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.0])
def test_who_has_pushed_a_batch_may_pull_one_more(lockstep, share):
    shard, gradient = Shard([keyed()], 2, lockstep, ahead=3), np.ones((1, DIMENSION), np.float32)
    for batch in range(3):
        for trainer in range(2):
            tell(shard, trainer, framed(Kind.PULL, batch, ask([5])))
    for batch in range(9):
        for trainer in range(2):
            with pytest.raises(Malformed, match="too far ahead"):
                tell(shard, trainer, framed(Kind.PULL, batch + 3, ask([5])))
            out = tell(shard, trainer, framed(Kind.PUSH, batch, [gradient], share=share or float(trainer)))
            assert len(out) == (2 * trainer if lockstep else 1)
            if not lockstep:
                tell(shard, trainer, framed(Kind.PULL, batch + 3, ask([5])))
        if lockstep:
            for trainer in range(2):
                tell(shard, trainer, framed(Kind.PULL, batch + 3, ask([5])))
    assert not shard._pushed and sum(shard._begun.values()) == len(shard._pulls) == 6


def test_a_look_up_changes_nothing():
    table = keyed()
    shard = Shard([table], 1)
    before = table.keys.fingerprint()
    ((_, answer),) = tell(shard, 0, framed(Kind.LOOK_UP, 1, ask([3, 4])))
    assert not answer.known.any() and answer.values.shape == (2, DIMENSION)
    assert table.keys.fingerprint() == before


GOOD = Pull(0, [np.arange(2)])
BAD = {
    "nothing": [],
    "no header": [b"MOA1"],
    "another magic": [b"X" + GOOD.frames()[0][1:]],
    "a shard's message": framed(Kind.ROWS, 0),
    "too few frames": [GOOD.frames()[0]],
    "too many frames": [*GOOD.frames(), b""],
    "half a row": [GOOD.frames()[0], b"1234567"],
    "no such row": framed(Kind.PULL, 0, [np.array([ROWS])]),
    "a row below 0": framed(Kind.PULL, 0, [np.array([-1])]),
    "a push without a pull": framed(Kind.PUSH, 0, [np.zeros((2, DIMENSION), np.float32)]),
    "a table that is not there": framed(Kind.LOOK_UP, 0, [np.arange(2)], table=7),
    "a batch below 0": framed(Kind.PULL, -1, [np.arange(2)]),
    "a share above 1": framed(Kind.PULL, 0, [np.arange(2)], share=2.0),
    "no number for a factor": framed(Kind.PULL, 0, [np.arange(2)], factor=float("nan")),
}


@pytest.mark.parametrize("name", BAD)
def test_what_nobody_sends_is_refused_and_changes_nothing(name):
    each = store(0)
    shard = Shard([NumberedTable(each, OPTIMIZER)], 1)
    with pytest.raises(Malformed):
        tell(shard, 0, BAD[name])
    push = Push(0, [np.ones((2, DIMENSION), np.float32)])
    assert tell(shard, 0, GOOD.frames())[0][1].final
    assert [message.kind for _, message in tell(shard, 0, push.frames())] == [Kind.APPLIED]


def test_a_batch_is_pulled_and_pushed_once():
    shard = Shard([NumberedTable(store(0), OPTIMIZER)], 2)
    push = Push(0, [np.ones((2, DIMENSION), np.float32)])
    tell(shard, 0, GOOD.frames())
    for again in (GOOD,):
        with pytest.raises(Malformed, match="again"):
            tell(shard, 0, again.frames())
    tell(shard, 0, push.frames())
    with pytest.raises(Malformed, match="again"):
        tell(shard, 0, push.frames())


def test_a_trainer_that_wants_to_stop_is_heard_by_all():
    shard = Shard([NumberedTable(store(0), OPTIMIZER)], 2)
    for rank in (0, 1):
        tell(shard, rank, GOOD.frames())
    part = [np.ones((2, DIMENSION), np.float32)]
    tell(shard, 0, framed(Kind.PUSH, 0, part, share=0.5, stop_at=9))
    news = tell(shard, 1, framed(Kind.PUSH, 0, part, share=0.5))
    assert [message.stop_at for _, message in news] == [9, 9]
    assert tell(shard, 1, framed(Kind.PULL, 1, [np.arange(1)])) == []  # trainer 0's comes first
    assert [m.stop_at for _, m in tell(shard, 0, framed(Kind.PULL, 1, [np.arange(1)]))] == [9, 9]


@pytest.mark.parametrize("first, pulled, stops", [(5, (), 7), (5, (5, 6), 8)])
def test_freely_a_wish_to_stop_counts_from_the_last_batch_pulled(first, pulled, stops):
    """Trainer 0 is at `first`, and would go on with two; nobody has gone further than that ahead of what is pulled."""
    shard = Shard([NumberedTable(store(0), OPTIMIZER)], 2, lockstep=False)
    shard.begin(first)
    for rank, number in ((0, first), *((1, number) for number in pulled)):
        tell(shard, rank, framed(Kind.PULL, number, [np.arange(2)]))
    part = [np.ones((2, DIMENSION), np.float32)]
    ((_, told),) = tell(shard, 0, framed(Kind.PUSH, first, part, share=0.5, stop_at=first + 2))
    assert told.stop_at == stops
