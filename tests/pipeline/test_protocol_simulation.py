"""The protocol over random interleavings, without threads: one event after the other, each of the package's own ledger,
channels, cache and store. Whoever would have to wait makes no move.

Each batch goes enter -> read row by row -> arrive -> validate and compute -> write row by row -> finish. A row's value
is made of the batches that updated it, in their order, so that a lost or misplaced update is seen.
"""

import random
import threading

import numpy as np
import pytest

from marius_oac.pipeline.batch import Batch, Buffers
from marius_oac.pipeline.ledger import Ledger
from marius_oac.pipeline.rows import LocalRows, LocalSource
from marius_oac.pipeline.validation import replace_older
from marius_oac.runtime.channel import ArrivalChannel, OrderedChannel
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from marius_oac.types import BatchData, Plan

ROWS, PER_BATCH, BATCHES = 6, 3, 40


class WouldWait(Exception):
    """A call that would have to wait."""


class Never(threading.Condition):
    """Waits for nothing."""

    def wait_for(self, predicate, timeout=None):
        if not predicate():
            raise WouldWait
        return True


class Host:
    """What `LocalRows` needs of a device on the CPU."""

    replace = staticmethod(replace_older)

    def evicted(self, batch):
        batch.resident = None


def updated(values, number):
    """A value after one more batch: exact in float32, and another one for any other order."""
    return (values.astype(np.int64) * 31 + number + 1) % 65521


class World:
    """Machines of the package, and the batches on their way, by what each does next."""

    def __init__(self, seed, in_flight, arrival=False, stalled=None, note_late=False):
        self.rng, self.in_flight, self.stalled, self.note_late = random.Random(seed), in_flight, stalled, note_late
        self.touched = [np.array(sorted(self.rng.sample(range(ROWS), PER_BATCH))) for _ in range(BATCHES)]
        self.store = MemoryStore("rows", ROWS, RowLayout(1, 0), RowInitial("uniform", 1.0, 0, "rows"))
        self.store.load(0, np.full(ROWS, -1), np.zeros((ROWS, 1), np.float32))
        self.ledger = Ledger(0, in_flight)
        room = ("uploaded", in_flight, 0)
        self.channel = ArrivalChannel(*room, in_flight - 1) if arrival else OrderedChannel(*room)
        self.ledger._changed, self.channel._changed = Never(), Never()
        self.rows = LocalRows(LocalSource([self.store], "oac"), Host(), lambda: False)
        self.entered, self.order, self.ages, self.peak = 0, [], [0], 0
        self.reading, self.writing = {}, {}
        self.arriving = []

    def play(self):
        """Until all batches are written; every move that is possible is as likely."""
        while self.ledger.maximum_finished < BATCHES - 1:
            moves = [(self.read, batch) for batch in self.reading.values()] + [
                (self.arrive, each) for each in self.arriving
            ]
            moves += [(self.compute,), (self.write_any,)] + [(self.enter,)] * (self.entered < BATCHES)
            move, *about = self.rng.choice(moves)
            try:
                move(*about)
            except WouldWait:
                continue
        return self

    def enter(self):
        number, rows = self.entered, self.touched[self.entered]
        batch = Batch(Plan(number, [rows], BatchData(), 1))
        batch.mft_at_read = self.ledger.enter(number)
        batch.resident = Buffers([rows], [np.empty(PER_BATCH, np.int64)], [np.empty((PER_BATCH, 1), np.float32)])
        self.reading[number], self.entered = batch, number + 1
        batch.moved = {"read": 0, "written": 0}

    def read(self, batch):
        at = batch.moved["read"]
        rows, timestamps, values = (part[at : at + 1] for part in batch.rows_in(batch.resident, 0))
        self.store.read(rows, values, timestamps)
        batch.moved["read"] += 1
        if self.note_late and at == 1:  # some other event may lie between it and the first row
            batch.mft_at_read = self.ledger._noted[batch.batch_index] = self.ledger.maximum_finished
        if at == PER_BATCH - 1:
            self.arriving.append(self.reading.pop(batch.batch_index))

    def arrive(self, batch):
        self.channel.put(batch)
        self.arriving.remove(batch)

    def compute(self):
        batch = self.channel.get()
        batch.timestamp = len(self.order)
        self.rows.validate(batch, self.ledger.validating(batch.batch_index))
        if self.rows._cache.oldest is not None:
            self.ages.append(batch.timestamp - self.rows._cache.oldest)
        self.peak = max(self.peak, len(self.rows._cache._batches))
        values = batch.rows_in(batch.resident, 0)[2]
        values[:] = updated(values, batch.batch_index)
        self.rows.computed(batch)
        self.order.append(batch.batch_index)
        self.writing[batch.batch_index] = batch.timestamp, values.copy(), batch

    def write_any(self):
        stalled = self.stalled in self.writing and len(self.writing) > 1 and self.rng.random() < 0.98
        numbers = [each for each in self.writing if not (stalled and each == self.stalled)]
        if not numbers:
            raise WouldWait
        number = self.rng.choice(numbers)
        timestamp, values, batch = self.writing[number]
        at = batch.moved["written"]
        self.store.commit(self.touched[number][at : at + 1], values[at : at + 1], timestamp)
        batch.moved["written"] += 1
        if at == PER_BATCH - 1:
            del self.writing[number]
            self.ledger.finish(timestamp)

    def found(self):
        values = np.empty((ROWS, 1), np.float32)
        self.store.read(np.arange(ROWS), values, np.empty(ROWS, np.int64))
        return values[:, 0].tolist()

    def expected(self):
        """Of a run that makes one batch after the other, in the order in which these were computed."""
        values = np.zeros(ROWS)
        for number in self.order:
            values[self.touched[number]] = updated(values[self.touched[number]], number)
        return values.tolist()


@pytest.mark.parametrize("in_flight", [1, 2, 5, 9])
@pytest.mark.parametrize("stalled", [None, 3])
def test_plan_order_equals_the_synchronous_run_within_the_bound(in_flight, stalled):
    for seed in range(12):
        world = World(seed, in_flight, stalled=stalled).play()
        assert world.order == list(range(BATCHES)) and world.found() == world.expected()
        assert max(world.ages) <= in_flight  # S + 1; the paper's bound is 2S + 1
        assert world.peak <= in_flight - 1


@pytest.mark.parametrize("in_flight", [2, 5, 9])
@pytest.mark.parametrize("stalled", [None, 3])
def test_arrival_order_equals_the_replay_of_its_order_within_the_bound(in_flight, stalled):
    orders = set()
    for seed in range(12):
        world = World(seed, in_flight, arrival=True, stalled=stalled).play()
        assert world.found() == world.expected()
        assert max(world.ages) <= 2 * in_flight - 1  # 2S + 1
        assert all(sum(other > each for other in world.order[:at]) < in_flight for at, each in enumerate(world.order))
        orders.add(tuple(world.order))
    assert len(orders) > 1


def test_batches_do_overlap():
    """Else all of this would hold of anything."""
    world = World(0, 9, stalled=3).play()
    assert world.peak >= 5 and max(world.ages) >= 5


def test_noting_the_mft_after_the_first_row_breaks_the_guarantee():
    worlds = [World(seed, 5, note_late=True).play() for seed in range(60)]
    assert any(world.found() != world.expected() for world in worlds)
