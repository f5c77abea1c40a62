"""What every parameter store must do with many threads; used as `conformance` is."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.storage.conformance import JIT, Making, filled, read_all

THREADS = 4


def together(*functions):
    """Runs the functions at once, each in a thread of its own; the first error comes out."""
    start = threading.Barrier(len(functions))

    def run(function):
        start.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as threads:
        return [future.result() for future in [threads.submit(run, function) for function in functions]]


class ConcurrentConformance(Making):
    """Many threads on few rows. What is written tells which call wrote it, so a torn row shows.

    The rows are long, so that most of a call is copying and calls do overlap.
    """

    ROUNDS = 1000 if JIT else 12
    """Calls per thread: bounded work, not bounded time."""
    ROWS = 3
    DIMENSION = 12_000 if JIT else 60
    STATE = 4_000 if JIT else 20

    def _store(self, value_dtype="float32"):
        return self.zeros(self.ROWS, self.DIMENSION, self.STATE, value_dtype)

    def _values(self, number):
        return filled(self.ROWS, self.DIMENSION + self.STATE, number)

    def _reader(self, store, check):
        rows = np.arange(self.ROWS)
        into, timestamps = self._values(0), np.zeros(self.ROWS, np.int64)

        def run():
            for _ in range(self.ROUNDS):
                store.read(rows, into, timestamps)
                assert (into.min(axis=1) == into.max(axis=1)).all(), "a torn row"
                check(into[:, 0], timestamps)

        return run

    @pytest.mark.parametrize("value_dtype", ["float32", "bfloat16"])
    def test_commits_leave_the_largest_timestamp_and_no_torn_row(self, value_dtype):
        # bfloat16 has 8 bits of precision: content is the timestamp modulo 256.
        modulus = 256 if value_dtype == "bfloat16" else 1 << 24

        def writer(store, rank):
            numbers = np.arange(rank, THREADS * self.ROUNDS, THREADS)
            np.random.default_rng(rank).shuffle(numbers[: self.ROUNDS // 2])
            rows = np.arange(self.ROWS)

            def run():
                refused, values = 0, self._values(0)
                for n in numbers.tolist():
                    values.fill(n % modulus)
                    refused += store.commit(rows, values, n)
                return refused

            return run

        def check(content, timestamps):
            written = timestamps >= 0
            np.testing.assert_array_equal(content[written], (timestamps % modulus)[written])
            assert not content[~written].any()

        with self._store(value_dtype) as store:
            writers = [writer(store, rank) for rank in range(THREADS)]
            outcomes = together(*writers, self._reader(store, check), self._reader(store, check))
            values, timestamps = read_all(store)
        last = THREADS * self.ROUNDS - 1
        assert (timestamps == last).all() and (values == last % modulus).all()
        assert 0 < sum(outcomes[:THREADS]) < THREADS * self.ROUNDS * self.ROWS

    def test_overwrites_with_one_timestamp_are_never_torn(self):
        """The timestamp stays the same from write to write: only the version tells a reader."""

        def writer(store, rank):
            rows, seen, values = np.arange(self.ROWS), np.zeros(self.ROWS, np.int64), self._values(0)

            def run():
                for n in range(self.ROUNDS):
                    values.fill(THREADS * n + rank)
                    store.overwrite(rows, values, 0, seen)

            return run

        with self._store() as store:
            together(
                *(writer(store, rank) for rank in range(THREADS)),
                self._reader(store, lambda content, timestamps: None),
                self._reader(store, lambda content, timestamps: None),
            )

    def test_updates_are_missing_exactly_if_lost_ones_were_counted(self):
        """Each call adds one to what it read: the last value of a row counts the writes that built on each other."""

        def writer(store, rank):
            rows, into, seen = np.arange(self.ROWS), self._values(0), np.zeros(self.ROWS, np.int64)

            def run():
                lost = 0
                for n in range(self.ROUNDS):
                    store.read(rows, into, seen)
                    into[:] += 1
                    lost += store.overwrite(rows, into, THREADS * n + rank, seen)
                return lost

            return run

        with self._store() as store:
            lost = sum(together(*(writer(store, rank) for rank in range(THREADS))))
            counts = read_all(store)[0][:, 0]
        missing = THREADS * self.ROUNDS * self.ROWS - int(counts.sum())
        assert missing >= 0 and 0 <= lost < THREADS * self.ROUNDS * self.ROWS
        assert (missing == 0) == (lost == 0)

    def test_additions_and_optimizers_at_the_store_lose_nothing(self):
        def adder(store, rank):
            rows, ones = np.arange(self.ROWS), self._values(1)

            def run():
                for n in range(self.ROUNDS):
                    store.add(rows, ones, THREADS * n + rank)

            return run

        def applier(store, rank):
            rows, gradients = np.arange(self.ROWS), filled(self.ROWS, self.DIMENSION, -1)

            def update(values, gradients):
                values -= gradients[:, :1]

            def run():
                for n in range(self.ROUNDS):
                    store.apply(rows, gradients, update, THREADS * n + rank)

            return run

        with self._store() as store:
            together(
                *(adder(store, rank) for rank in range(2)),
                *(applier(store, rank) for rank in range(2, THREADS)),
                self._reader(store, lambda content, timestamps: None),
            )
            values, timestamps = read_all(store)
        assert (values == THREADS * self.ROUNDS).all()
        assert (timestamps == THREADS * self.ROUNDS - 1).all()

    def test_overlapping_row_sets_do_not_deadlock(self):
        """Every thread locks another set of rows at once; in ascending order nobody waits in a circle."""

        def applier(store, rank):
            generator = np.random.default_rng(rank)

            def update(values, gradients):
                values += 1

            def run():
                total = 0
                for n in range(self.ROUNDS):
                    rows = np.flatnonzero(generator.random(self.ROWS) < 0.5)
                    store.apply(rows, filled(len(rows), self.DIMENSION, 0), update, n)
                    total += len(rows)
                return total

            return run

        with self._store() as store:
            total = sum(together(*(applier(store, rank) for rank in range(THREADS))))
            assert read_all(store)[0][:, 0].sum() == total
