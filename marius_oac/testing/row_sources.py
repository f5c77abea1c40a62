"""What a source of rows must do, wherever its rows lie.

from marius_oac.testing.row_sources import World, check_row_source

def test_my_source():
    @contextmanager
    def make():
        ...
        yield World(source, tables, stored)

    check_row_source(make)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import HostDevice
from marius_oac.pipeline.ledger import Ledger
from marius_oac.pipeline.rows import RowSource
from marius_oac.runtime.channel import Closed
from marius_oac.types import BatchData, Plan, TableSpec

PATIENCE = 30.0
"""Seconds after which a call counts as stuck."""
_PAUSE = 0.3
_BATCHES, _IN_FLIGHT, _MANY = 12, 4, 50
_ENDLESS = 2**60


def _as_they_are(plan: Plan[Any]) -> Plan[Any]:
    return plan


def _replaced(values: np.ndarray, new: np.ndarray) -> None:
    values[:] = new


@dataclass(frozen=True)
class World:
    """A new source whose rows are all 0, and what the suite must know of it.

    Attributes:
        source: of rows.
        tables: their sizes; a batch has up to `max_batch_rows` of each.
        stored: returns the rows of each table as they are stored, float32 [rows, width], when nothing is under way.
        leave: called with a batch's rows as they were computed with and as they shall become, float32 [n, width];
            changes the former in place as a step for this source does, such as to gradients.
        planned: returns a plan as the source needs it, such as with routes.
        waits: a batch waits for something that `abort` ends.
    """

    source: RowSource
    tables: Sequence[TableSpec]
    stored: Callable[[], Sequence[np.ndarray]]
    leave: Callable[[np.ndarray, np.ndarray], None] = _replaced
    planned: Callable[[Plan[Any]], Plan[Any]] = _as_they_are
    waits: bool = False


Make = Callable[[], AbstractContextManager[World]]


def check_row_source(make: Make) -> None:
    """Checks that batches compute with the rows that all batches before them left, whatever is under way meanwhile.

    Args:
        make: makes a world, which is used once; on exit it ends what may still wait.

    Raises:
        AssertionError: something is wrong.
    """
    checks = [_abort_ends_every_wait, _one_at_a_time, _stops_when_asked]
    with make() as world:
        if world.source.validates:
            checks += [_reads_ahead, _many_threads]
        if world.source.caching:
            checks.append(_writes_overtake)
    for check in checks:
        with ThreadPoolExecutor(_IN_FLIGHT) as threads, make() as world:
            check(_Run(world, threads))


class _Run:
    """Takes batches through a source's exchange, as the pipeline does, in an order that a check decides."""

    def __init__(self, world: World, threads: ThreadPoolExecutor) -> None:
        self.world, self.source, self._threads = world, world.source, threads
        self.expected = [
            np.zeros((table.num_rows, layout.width), np.float32)
            for table, layout in zip(world.tables, world.source.layouts, strict=True)
        ]
        self.stop_requested = False

    def begin(self, first: int, last: int = _ENDLESS) -> None:
        """Begins a run of the batches [first, last)."""
        self.batches: dict[int, Batch] = {}
        self.ledger = Ledger(first, _IN_FLIGHT)
        self.device = HostDevice(self.world.tables, self.source.layouts, _IN_FLIGHT, self.source.caching)
        self.rows = self.source.begin(first, last, self.device, lambda: self.stop_requested)

    def announce(self, number: int) -> None:
        """Plans a batch, and has its rows fetched if the source looks ahead."""
        random, tables = np.random.default_rng(number), self.world.tables
        picks = [np.sort(random.choice(each.num_rows, each.max_batch_rows, replace=False)) for each in tables]
        batch = self.batches[number] = Batch(self.world.planned(Plan(number, picks, BatchData(), 1)))
        if self.source.look_ahead:
            self.rows.announce(batch)
            self.rows.fetch(batch)

    def read(self, number: int) -> None:
        """Reads the rows of an announced batch."""
        batch = self.batches[number]
        if self.source.look_ahead:
            self.rows.wait(batch)
        batch.mft_at_read = self.ledger.enter(number)
        self.device.borrow(batch)
        self.rows.read(batch)
        self.device.upload(batch)

    def compute(self, number: int) -> None:
        """Validates a batch, compares its rows with those that it must have, and changes them."""
        batch, safe = self.batches[number], self.ledger.validating(number)
        if self.source.validates:
            self.rows.validate(batch, safe)
        batch.timestamp, batch.loss = number, 0.0
        for table, expected in enumerate(self.expected):
            rows, values = batch.plan.rows[table], batch.rows_in(batch.resident, table)[2]
            same = np.array_equal(values, expected[rows])
            assert same, f"batch {number} computes with other rows of table {table} than the batches before it left"
            expected[rows] = expected[rows] * np.float32(0.5) + np.float32(number + 1)  # exact: it has few bits
            self.world.leave(values, expected[rows])
        self.rows.computed(batch)

    def write(self, number: int) -> None:
        """Writes a computed batch."""
        batch = self.batches[number]
        self.device.download(batch)
        self.rows.write(batch)
        self.device.written(batch, cached=self.source.caching)
        self.ledger.finish(batch.timestamp)

    def end(self, number: int) -> None:
        """Ends the run before batch `number`, and compares what is stored."""
        self.rows.end(number)
        for table, (found, expected) in enumerate(zip(self.world.stored(), self.expected, strict=True)):
            assert np.array_equal(found, expected), f"stored rows of table {table} are not what the last batches left"

    def begun(self, *calls: Callable[[], None]) -> list[Future[None]]:
        """Begins each call in a thread of its own."""
        return [self._threads.submit(call) for call in calls]

    def at_once(self, *calls: Callable[[], None]) -> None:
        """Makes the calls at once; they must all end."""
        started = self.begun(*calls)
        late = wait(started, PATIENCE).not_done
        if late:
            self.rows.abort()
            self.ledger.abort()
        assert not late, "a batch waits for ever, for others that are written or come after it"
        for each in started:
            each.result()


def _one_at_a_time(run: _Run) -> None:
    def play(first: int) -> None:
        run.begin(first, first + _BATCHES)
        for number in range(first, first + _BATCHES):
            for stage in (run.announce, run.read, run.compute, run.write):
                stage(number)
        run.end(first + _BATCHES)

    run.at_once(partial(play, 0))
    run.at_once(partial(play, _BATCHES))
    wrong = {name: value for name, value in run.source.metrics().items() if not math.isfinite(value)}
    assert not wrong, f"metrics that are no numbers: {wrong}"


def _reads_ahead(run: _Run) -> None:
    def play() -> None:
        for number in range(_BATCHES + _IN_FLIGHT - 1):
            if number < _BATCHES:
                run.announce(number)
                run.read(number)
            if (oldest := number - _IN_FLIGHT + 1) >= 0:
                run.compute(oldest)
                run.write(oldest)
        run.end(_BATCHES)

    run.begin(0, _BATCHES)
    run.at_once(play)


def _writes_overtake(run: _Run) -> None:
    def play() -> None:
        for first in range(0, _BATCHES, _IN_FLIGHT):
            group = range(first, first + _IN_FLIGHT)
            for stage, numbers in ((run.announce, group), (run.read, group), (run.compute, group)):
                for number in numbers:
                    stage(number)
            for number in reversed(group):
                run.write(number)
        run.end(_BATCHES)

    run.begin(0, _BATCHES)
    run.at_once(play)


def _many_threads(run: _Run) -> None:
    run.begin(0, _BATCHES)
    for first in range(0, _BATCHES, _IN_FLIGHT):
        group = range(first, first + _IN_FLIGHT)
        for number in group:
            run.announce(number)
        run.at_once(*(partial(run.read, number) for number in group))
        for number in group:
            run.at_once(partial(run.compute, number))
            if not run.source.caching:
                run.at_once(partial(run.write, number))
        if run.source.caching:
            run.at_once(*(partial(run.write, number) for number in group))
    run.at_once(partial(run.end, _BATCHES))


def _stops_when_asked(run: _Run) -> None:
    def play(number: int) -> None:
        for stage in (run.announce, run.read, run.compute, run.write):
            stage(number)

    run.begin(0)
    assert not run.rows.stops_before(0), "the run ends before anybody has asked for it"
    run.at_once(partial(play, 0))
    run.stop_requested = True
    run.at_once(partial(play, 1))
    run.at_once(partial(run.end, 2))
    assert run.rows.stops_before(_ENDLESS), "the run does not end when the user wants to stop"


def _abort_ends_every_wait(run: _Run) -> None:
    def play() -> None:
        for number in range(1 + run.source.validates):  # rows that come from elsewhere may need the write of batch 0
            for stage in (run.announce, run.read, run.compute):
                stage(number)
        for number in range(2, _MANY):  # no room is left where batches hold some until they are written
            run.announce(number)

    run.begin(0)
    (playing,) = run.begun(play)
    still = bool(wait([playing], _PAUSE).not_done)
    assert still == run.world.waits, "nothing waits" if run.world.waits else "a batch waits"
    run.rows.abort()
    assert not wait([playing], PATIENCE).not_done, "a call still waits after `abort`"
    error = playing.exception()
    assert isinstance(error, Closed) == still and (still or error is None), f"`abort` ends a call by {error!r}"
