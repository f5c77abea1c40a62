"""Keys of a table: rows in the order of the log, admission, dropping, checkpoints; against a naive table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.table import NO_KEY, KeyTable, shared_by_all
from marius_oac.storage.memory import MemoryStore

LAYOUT = RowLayout(3, 1)


def by_thirds(vocabularies, keys):
    return NO_KEY + 1 + keys % 3


def make_table(capacity=100, admit_after=1, drop_after=0, shared=(shared_by_all,)):
    store = MemoryStore("t", 0, LAYOUT, RowInitial("normal", 1.0, 0, "t", 0.5), capacity)
    return KeyTable(store, admit_after, drop_after, shared=shared)


class NaiveTable:
    """Dictionaries, one key at a time."""

    def __init__(self, admit_after, drop_after, shared):
        self.admit_after, self.drop_after, self.shared = admit_after, drop_after, shared
        self.rows, self.free, self.count = {}, [], 0
        self.seen, self.last_file = {}, {}

    def _row(self, key):
        if key not in self.rows:
            if self.free:
                self.free.sort()
                self.rows[key] = self.free.pop(0)
            else:
                self.rows[key] = self.count
                self.count += 1
        return self.rows[key]

    def admit(self, keys, file):
        missing = [key for key in keys if key not in self.rows]
        if self.admit_after > 1:
            for key in missing:
                self.seen[key] = self.seen.get(key, 0) + 1
        found = []
        for key in keys:
            rare = key not in self.rows and self.admit_after > 1 and self.seen[key] < self.admit_after
            found.append(self._row((key[0], self._shared_of(key)) if rare else key))
        for row in found:
            self.last_file[row] = file
        return found

    def _shared_of(self, key):
        return NO_KEY if self.shared is shared_by_all else NO_KEY + 1 + key[1] % 3

    def drop_unseen(self, file):
        old = [key for key, row in self.rows.items()
               if self.drop_after and key[1] > NO_KEY + 3 and self.last_file[row] < file - self.drop_after]  # fmt: skip
        for key in old:
            self.free.append(self.rows.pop(key))


def asked(keys):
    vocabularies, numbers = zip(*keys, strict=True) if keys else ((), ())
    return np.array(vocabularies, np.uint16), np.array(numbers, np.int64), np.zeros(len(keys), np.uint32)


batches = st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 6)), min_size=1, max_size=12), max_size=12)


@settings(deadline=None, max_examples=80)
@given(
    batches=batches,
    admit_after=st.sampled_from([1, 2, 3]),
    drop_after=st.integers(0, 2),
    shared=st.sampled_from([shared_by_all, by_thirds]),
)
def test_rows_are_those_of_the_naive_table(batches, admit_after, drop_after, shared):
    table = make_table(admit_after=admit_after, drop_after=drop_after, shared=(shared,))
    naive = NaiveTable(admit_after, drop_after, shared)
    try:
        for file, keys in enumerate(batches):
            table.drop_unseen(file)
            naive.drop_unseen(file)
            rows = table.find(*asked(keys))
            assert [row if row >= 0 else None for row in rows.tolist()] == [naive.rows.get(key) for key in keys]
            table.admit(*asked(keys), rows)
            table.seen_in(rows, file)
            assert rows.tolist() == naive.admit(keys, file)
            assert table.store.num_rows == naive.count
        copy = make_table(admit_after=admit_after, drop_after=drop_after, shared=(shared,))
        copy.load({name: np.array(array) for name, array in table.arrays().items()})
        every = sorted(naive.rows)
        assert copy.find(*asked(every)).tolist() == [naive.rows[key] for key in every]
        assert len(copy) == len(table) == len(naive.rows)
        for file, keys in enumerate(batches, len(batches)):
            found = table.find(*asked(keys)), copy.find(*asked(keys))
            for one, rows in zip((table, copy), found, strict=True):
                one.admit(*asked(keys), rows)
                one.seen_in(rows, file)
            assert found[0].tolist() == found[1].tolist()
        copy.store.close()
    finally:
        table.store.close()


def test_a_new_row_has_the_first_value_of_its_key_whatever_its_number():
    values = {}
    for order in ([5, 9, 7], [7, 5, 9]):
        table = make_table()
        rows = table.find(*asked([(0, key) for key in order]))
        table.admit(*asked([(0, key) for key in order]), rows)
        for key, row in zip(order, rows, strict=True):
            into = np.empty((1, LAYOUT.width), np.float32)
            table.store.read(np.array([row]), into, np.empty(1, np.int64))
            values.setdefault(key, []).append(into.tobytes())
        table.store.close()
    assert all(len(set(found)) == 1 for found in values.values()) and len({found[0] for found in values.values()}) == 3


def test_the_fingerprint_is_that_of_the_keys_not_of_their_order():
    found = set()
    for order in ([(0, 5), (1, 9), (0, 7)], [(0, 7), (1, 9), (0, 5)]):
        table = make_table()
        rows = table.find(*asked(order))
        table.admit(*asked(order), rows)
        found.add(table.fingerprint())
        table.store.commit(np.array([1]), np.full((1, LAYOUT.width), 2, np.float32), 3)
        assert table.fingerprint() not in found
        table.store.close()
    assert len(found) == 1


def test_dropped_rows_begin_anew():
    table = make_table(drop_after=1)
    rows = table.find(*asked([(0, 1), (0, 2)]))
    table.admit(*asked([(0, 1), (0, 2)]), rows)
    table.seen_in(rows, 0)
    table.store.commit(np.array([0, 1]), np.full((2, LAYOUT.width), 9, np.float32), 4)
    assert table.drop_unseen(2) == 2 and len(table) == 0
    again = table.find(*asked([(0, 2)]))
    table.admit(*asked([(0, 2)]), again)
    into, stamps = np.empty((1, LAYOUT.width), np.float32), np.empty(1, np.int64)
    table.store.read(again, into, stamps)
    assert again.tolist() == [0] and stamps.tolist() == [-1] and (into != 9).all()
    table.store.close()


@pytest.mark.parametrize("admit_after", [1, 2])
def test_unknown_keys_are_looked_up_without_leaving_a_trace(admit_after):
    table = make_table(admit_after=admit_after)
    known = [(0, 1)] * admit_after
    table.admit(*asked(known), table.find(*asked(known)))
    values, local, unknown = table.look_up(*asked([(0, 1), (1, 1), (0, 1), (1, 1), (1, 2)]))
    assert (
        unknown.tolist() == [False, True, False, True, True]
        and local[0] == local[2]
        and local[1] == local[3] != local[4]
        and table.store.num_rows == 1
    )
    assert len({values[place].tobytes() for place in local}) == 3
    fresh = make_table()
    fresh.admit(*asked([(1, 2)]), rows := fresh.find(*asked([(1, 2)])))
    into = np.empty((1, LAYOUT.width), np.float32)
    fresh.store.read(rows, into, np.empty(1, np.int64))
    assert into[0].tobytes() == values[local[4]].tobytes()
    table.store.close()
    fresh.store.close()


def test_a_table_of_other_origin_is_looked_up_by_its_own_shared_rows():
    """A model that was trained over nodes is read on one machine."""
    table, rare = make_table(admit_after=2, shared=(by_thirds,)), asked([(0, 4)])
    table.admit(*rare, table.find(*rare))
    read = make_table(admit_after=2, shared=(shared_by_all, by_thirds))
    read.load(table.arrays())
    table.store.commit(np.array([0]), np.full((1, LAYOUT.width), 9, np.float32), 1)
    read.store.load(0, np.array([1]), np.full((1, LAYOUT.width), 9, np.float32))
    values, local, unknown = read.look_up(*asked([(0, 7), (0, 5)]))  # which share a row with 4, and with nobody
    assert unknown.all() and (values[local[0]] == 9).all() and (values[local[1]] != 9).all()
    table.store.close()
    read.store.close()
