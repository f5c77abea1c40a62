"""What every parameter store must do. A store's test module derives from these classes and defines `make_store`."""

from abc import ABC, abstractmethod
from itertools import permutations

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marius_oac.storage.contract import MAX_TIMESTAMP, ParameterStore, RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.types import NEVER
from tests.storage.naive import NaiveStore

JIT = not numba.config.DISABLE_JIT
EXAMPLES = settings(
    max_examples=60 if JIT else 15,
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
)
layouts = st.builds(
    RowLayout,
    dimension=st.integers(1, 9),
    state_width=st.integers(0, 5),
    value_dtype=st.sampled_from(["float32", "bfloat16"]),
)
numbers = st.floats(-1e6, 1e6, width=32)


def ids(*rows):
    return np.array(rows, np.int64)


def filled(count, width, value):
    return np.full((count, width), value, np.float32)


def initial_rows(initial, num_rows, layout):
    rows = np.empty((num_rows, layout.width), np.float32)
    initial.fill(np.arange(num_rows), rows, layout.dimension)
    return rows


def read(store, rows, columns=None):
    into = np.full((len(rows), store.layout.width if columns is None else columns), np.nan, np.float32)
    timestamps = np.full(len(rows), -7, np.int64)
    store.read(rows, into, timestamps)
    return into, timestamps


def read_all(store):
    return read(store, np.arange(store.num_rows))


class Making(ABC):
    """Hands out stores; a subclass says which."""

    @abstractmethod
    def make_store(
        self, num_rows: int, layout: RowLayout, initial: RowInitial, capacity: int | None = None
    ) -> ParameterStore: ...

    def zeros(self, num_rows, dimension=4, state_width=2, value_dtype="float32"):
        layout = RowLayout(dimension, state_width, value_dtype)
        return self.make_store(num_rows, layout, RowInitial("uniform", 0.0, 0, "zeros"))


class StoreConformance(Making):
    """One thread."""

    @EXAMPLES
    @given(data=st.data(), layout=layouts, num_rows=st.integers(1, 12), kind=st.sampled_from(["uniform", "normal"]))
    def test_any_calls_do_what_the_naive_store_does(self, data, layout, num_rows, kind):
        initial = RowInitial(kind, 0.5, data.draw(st.integers(0, 9)), "table", state_initial=0.25)
        naive = NaiveStore(layout, initial_rows(initial, num_rows, layout))
        subsets = st.sets(st.integers(0, num_rows - 1)).map(lambda rows: ids(*sorted(rows)))

        def matrix(count, width):
            flat = data.draw(st.lists(numbers, min_size=count * width, max_size=count * width))
            return np.array(flat, np.float32).reshape(count, width)

        def update(rows, gradients):
            rows[:, : layout.dimension] -= np.float32(0.5) * gradients
            rows[:, layout.dimension :] += 1

        with self.make_store(num_rows, layout, initial) as store:
            for _ in range(data.draw(st.integers(0, 6))):
                rows, timestamp = data.draw(subsets), data.draw(st.integers(0, 5) | st.just(MAX_TIMESTAMP))
                call = data.draw(st.sampled_from(["commit", "overwrite", "add", "apply", "load"]))
                if call == "load":
                    first = int(rows[0]) if len(rows) else 0
                    stamps = np.array(data.draw(st.lists(st.integers(-1, 9), max_size=num_rows - first)), np.int64)
                    arguments = (first, stamps, matrix(len(stamps), layout.width))
                elif call == "apply":
                    arguments = (rows, matrix(len(rows), layout.dimension), update, timestamp)
                elif call == "overwrite":
                    seen = ids(*data.draw(st.lists(st.integers(-1, 3), min_size=len(rows), max_size=len(rows))))
                    arguments = (rows, matrix(len(rows), layout.width), timestamp, seen)
                else:
                    arguments = (rows, matrix(len(rows), layout.width), timestamp)
                assert getattr(store, call)(*arguments) == getattr(naive, call)(*arguments)
                some = data.draw(subsets)
                values, stamps = naive.read(some.tolist())
                for columns in (layout.width, layout.dimension, 0):
                    found = read(store, some, columns)
                    np.testing.assert_array_equal(found[0], values[:, :columns])
                    np.testing.assert_array_equal(found[1], stamps)
            for found, expected in zip(read_all(store), naive.read(range(num_rows)), strict=True):
                np.testing.assert_array_equal(found, expected)
            assert store.fingerprint() == naive.fingerprint()

    def test_starts_at_its_initial_rows_never_written(self):
        count, layout = 40_000 if JIT else 4000, RowLayout(7, 3)
        initial = RowInitial("normal", 0.1, 5, "entities", state_initial=0.5)
        with self.make_store(count, layout, initial) as store:
            values, timestamps = read_all(store)
        np.testing.assert_array_equal(values, initial_rows(initial, count, layout))
        assert (timestamps == NEVER).all()

    @pytest.mark.parametrize("first", ["initialize", "extend", "load", "commit", "snapshot"])
    def test_initial_rows_are_there_whatever_is_called_first(self, first):
        initial, layout = RowInitial("normal", 0.5, 3, "table", state_initial=0.25), RowLayout(3, 2)
        expected, stamps, row = np.empty((4, layout.width), np.float32), np.full(4, NEVER), filled(1, layout.width, 7)
        initial.fill(ids(0, 1, 2, 77), expected, layout.dimension)
        with self.make_store(3, layout, initial, 4) as store:
            if first == "initialize":
                store.initialize()
            elif first == "extend":
                store.extend(ids(77))
            elif first == "load":
                store.load(1, ids(2), row)
                expected[1], stamps[1] = row, 2
            elif first == "commit":
                store.commit(ids(2), row, 5)
                expected[2], stamps[2] = row, 5
            else:
                for _ in store.snapshot().blocks:
                    pass
            store.initialize()  # which changes no rows that were written
            values, timestamps = read_all(store)
            np.testing.assert_array_equal(values, expected[: store.num_rows])
            np.testing.assert_array_equal(timestamps, stamps[: store.num_rows])

    def test_largest_timestamp_wins_in_every_order(self):
        for order in permutations([3, 0, 2, 1]):
            with self.zeros(2) as store:
                refused = [store.commit(ids(0, 1), filled(2, 6, t), t) for t in order]
                values, timestamps = read_all(store)
            assert (values == 3).all() and (timestamps == 3).all()
            smaller_came_later = [any(earlier > t for earlier in order[:i]) for i, t in enumerate(order)]
            assert refused == [2 * late for late in smaller_came_later]

    def test_an_equal_timestamp_is_refused(self):
        with self.zeros(1) as store:
            assert store.commit(ids(0), filled(1, 6, 1), 0) == 0
            assert store.commit(ids(0), filled(1, 6, 2), 0) == 1
            assert (read_all(store)[0] == 1).all()

    def test_overwrite_counts_the_updates_it_loses(self):
        with self.zeros(4) as store:
            # Batches 0 and 1 read, then both write: they share rows 1 and 2.
            first, second = ids(0, 1, 2), ids(1, 2, 3)
            seen_first, seen_second = read(store, first)[1], read(store, second)[1]
            assert store.overwrite(first, filled(3, 6, 10), 0, seen_first) == 0
            assert store.overwrite(second, filled(3, 6, 11), 1, seen_second) == 2
            # Batches 2 and 3 take turns: nothing is lost.
            assert store.overwrite(first, filled(3, 6, 12), 2, read(store, first)[1]) == 0
            assert store.overwrite(second, filled(3, 6, 13), 3, read(store, second)[1]) == 0
            # Batch 5 overtakes batch 4, which reads first and writes last.
            seen = read(store, ids(1))[1]
            assert store.overwrite(ids(1), filled(1, 6, 15), 5, read(store, ids(1))[1]) == 0
            assert store.overwrite(ids(1), filled(1, 6, 14), 4, seen) == 1
            values, timestamps = read_all(store)
        assert values[:, 0].tolist() == [12, 14, 13, 13]
        assert timestamps.tolist() == [2, 4, 3, 3]

    def test_apply_that_raises_changes_nothing_and_holds_nothing(self):
        with self.zeros(3) as store:
            store.commit(ids(0, 1, 2), filled(3, 6, 1), 4)
            before = store.fingerprint()

            def fail(rows, gradients):
                rows += 1
                raise ArithmeticError("from the optimizer")

            with pytest.raises(ArithmeticError, match="from the optimizer"):
                store.apply(ids(0, 2), filled(2, 4, 1), fail, 5)
            assert store.fingerprint() == before
            assert read_all(store)[1].tolist() == [4, 4, 4]
            assert store.commit(ids(0, 1, 2), filled(3, 6, 2), 6) == 0  # would wait for ever for a lock left behind

    def test_apply_treats_many_rows_in_pieces(self):
        count = 50_000 if JIT else 3000
        pieces = []

        def update(rows, gradients):
            assert rows.dtype == gradients.dtype == np.float32
            assert rows.shape == (len(gradients), 6 if JIT else 600)
            pieces.append(len(rows))
            if len(pieces) == 3:
                raise ArithmeticError
            rows[:, : gradients.shape[1]] += gradients

        with self.zeros(count, *((4, 2) if JIT else (400, 200))) as store:
            gradients = np.arange(1, count + 1, dtype=np.float32)[:, None].repeat(store.layout.dimension, axis=1)
            with pytest.raises(ArithmeticError):
                store.apply(np.arange(count), gradients, update, 9)
            values, timestamps = read_all(store)
            done = pieces[0] + pieces[1]
            assert done < count
            np.testing.assert_array_equal(values[:done, : gradients.shape[1]], gradients[:done])
            assert not values[done:].any()
            assert (timestamps[:done] == 9).all() and (timestamps[done:] == NEVER).all()
            assert store.commit(np.arange(count), np.zeros_like(values), 10) == 0
            assert store.commit(np.arange(count), np.zeros_like(values), 9) == count

    @pytest.mark.parametrize("value_dtype", ["float32", "bfloat16"])
    def test_blocks_carry_a_table_to_another_store(self, value_dtype):
        layout = RowLayout(5, 3, value_dtype)
        with (
            self.make_store(103, layout, RowInitial("normal", 1.0, 1, "one")) as one,
            self.make_store(103, layout, RowInitial("uniform", 1.0, 2, "other")) as other,
        ):
            one.commit(ids(3, 50, 102), np.random.default_rng(0).random((3, 8), np.float32), 17)
            assert one.fingerprint() != other.fingerprint()
            blocks = list(one.blocks(20))
            assert [block.first_row for block in blocks] == [0, 20, 40, 60, 80, 100]
            for block in blocks:
                other.load(*block)
            assert one.fingerprint() == other.fingerprint()
            for found, expected in zip(read_all(other), read_all(one), strict=True):
                np.testing.assert_array_equal(found, expected)

    def test_fingerprint_covers_every_element_but_not_timestamps(self):
        with self.zeros(3) as store:
            prints = {store.fingerprint()}
            store.commit(ids(1), filled(1, 6, 0), 8)
            assert {store.fingerprint()} == prints
            for row in range(3):
                for column in range(6):
                    values = filled(1, 6, 0)
                    values[0, column] = 1
                    store.overwrite(ids(row), values, 1, ids(0))
                    prints.add(store.fingerprint())
                store.overwrite(ids(row), filled(1, 6, 0), 1, ids(0))
            assert len(prints) == 1 + 3 * 6

    def test_the_caller_keeps_its_arrays(self):
        with self.zeros(2) as store:
            values, (into, timestamps) = filled(1, 6, 5), read(store, ids(0))
            store.commit(ids(0), values, 1)
            values[:] = 6
            assert not into.any() and timestamps[0] == NEVER
            assert (read(store, ids(0))[0] == 5).all()

    @pytest.mark.parametrize("value_dtype", ["float32", "bfloat16"])
    def test_no_rows_at_all(self, value_dtype):
        with self.zeros(0, value_dtype=value_dtype) as store:
            none = ids()
            assert store.commit(none, filled(0, 6, 0), 0) == 0
            assert store.overwrite(none, filled(0, 6, 0), 0, none) == 0
            store.add(none, filled(0, 6, 0), 0)
            store.apply(none, filled(0, 4, 0), lambda rows, gradients: None, 0)
            store.load(0, none, filled(0, 6, 0))
            assert list(store.blocks()) == []
            assert read_all(store)[0].shape == (0, 6)

    @pytest.mark.parametrize("rows", [[5], [-1], [0, 0], [1, 0], [0, 1, 1, 2], [2**62], [0, 2, 5]])
    def test_bad_row_ids_are_refused(self, rows):
        with self.zeros(5) as store:
            before, rows, n = store.fingerprint(), ids(*rows), len(rows)
            for call, *arguments in (
                ("read", filled(n, 6, 0), np.zeros(n, np.int64)),
                ("commit", filled(n, 6, 1), 1),
                ("overwrite", filled(n, 6, 1), 1, np.zeros(n, np.int64)),
                ("add", filled(n, 6, 1), 1),
                ("apply", filled(n, 4, 1), lambda rows, gradients: None, 1),
            ):
                with pytest.raises(ValueError, match=r"table 'zeros': (rows\[|row ids must ascend)"):
                    getattr(store, call)(rows, *arguments)
            assert store.fingerprint() == before
            assert (read_all(store)[1] == NEVER).all()

    def test_bad_arrays_are_refused(self):
        with self.zeros(5) as store:
            good = filled(2, 6, 0)
            for rows, values, timestamp in (
                (np.array([0, 1], np.int32), good, 1),
                (np.array([0.0, 1.0]), good, 1),
                (np.arange(4)[::2], good, 1),
                (ids(0, 1)[None], good, 1),
                (ids(0, 1), good.astype(np.float64), 1),
                (ids(0, 1), filled(2, 5, 0), 1),
                (ids(0, 1), filled(3, 6, 0), 1),
                (ids(0, 1), np.zeros((6, 2), np.float32).T, 1),
                (ids(0, 1), good, -1),
                (ids(0, 1), good, MAX_TIMESTAMP + 1),
            ):
                for call in (store.commit, store.add):
                    with pytest.raises(ValueError, match="table 'zeros'"):
                        call(rows, values, timestamp)
            read_only = filled(2, 6, 0)
            read_only.flags.writeable = False
            with pytest.raises(ValueError, match="into must be C-contiguous and aligned and writable"):
                store.read(ids(0, 1), read_only, ids(0, 0))
            for into in (filled(2, 5, 0), filled(3, 4, 0), filled(1, 0, 0), np.float32(0)):
                with pytest.raises(ValueError, match="into must be float32"):
                    store.read(ids(0, 1), into, ids(0, 0))
            assert store.commit(ids(0, 1), read_only, 1) == 0
            for first, *timestamps in ((4, 0, 0), (-1, 0, 0), (0, -2, 0), (0, 0, MAX_TIMESTAMP + 1)):
                with pytest.raises(ValueError, match="table 'zeros'"):
                    store.load(first, ids(*timestamps), filled(2, 6, 1))
            with pytest.raises(ValueError, match="rows_per_block"):
                list(store.blocks(0))

    def test_a_closed_store_refuses_everything(self):
        store = self.zeros(2)
        store.flush()
        store.close()
        store.close()
        for call in (
            lambda: read_all(store),
            lambda: store.commit(ids(0), filled(1, 6, 0), 0),
            lambda: store.load(0, ids(0), filled(1, 6, 0)),
            store.initialize,
            store.flush,
            store.fingerprint,
        ):
            with pytest.raises(ValueError, match="closed"):
                call()

    def test_rows_to_come_have_room_and_keys_of_their_own(self):
        initial = RowInitial("normal", 0.5, 3, "table", state_initial=0.25)
        layout = RowLayout(3, 2)
        keys = ids(77, -5, 1 << 62, 0)
        expected = np.empty((4, layout.width), np.float32)
        initial.fill(keys, expected, layout.dimension)
        with self.make_store(0, layout, initial, 4) as store:
            assert (store.num_rows, store.capacity, store.nbytes) == (0, 4, 0)
            store.extend(keys[:1])
            store.extend(keys[1:1])
            store.commit(ids(0), filled(1, layout.width, 2), 5)
            store.extend(keys[1:])
            values, timestamps = read_all(store)
            np.testing.assert_array_equal(values[1:], expected[1:])
            np.testing.assert_array_equal(values[0], filled(1, layout.width, 2)[0])
            assert timestamps.tolist() == [5, NEVER, NEVER, NEVER]
            with pytest.raises(ValueError, match="'table': 1 more rows than 4 do not fit, there is room for 4"):
                store.extend(keys[:1])
            with pytest.raises(ValueError, match="rows\\[0\\] = 4 is not in 0 to 3"):
                read(store, ids(4))
            store.reset(ids(0, 2), keys[[0, 2]])
            values, timestamps = read_all(store)
            np.testing.assert_array_equal(values, expected)
            assert timestamps.tolist() == [NEVER] * 4
