"""The index of keys against a dictionary; beside a growing one, every answer is checked."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import InputError
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.storage.keys import index as key_index
from marius_oac.storage.keys.distinct import number_distinct
from marius_oac.storage.keys.index import KeyIndex, initial_keys
from marius_oac.storage.keys.shards import Shards

JIT = not numba.config.DISABLE_JIT
EXTREMES = (-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1)


class NaiveIndex:
    """A dictionary and a list of free rows."""

    def __init__(self):
        self.rows, self.checks, self.free, self.count = {}, {}, [], 0

    def insert(self, key, check):
        if key not in self.rows:
            self.rows[key] = self.free.pop(0) if self.free else self.count
            self.count = max(self.count, self.rows[key] + 1)
            self.checks[key] = check
        return self.rows[key]

    def drop(self, row):
        (key,) = (key for key, of in self.rows.items() if of == row)
        del self.rows[key], self.checks[key]
        self.free = sorted([*self.free, row])


def mixed(state):
    """splitmix64 in Python's integers."""
    state %= 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def unmixed(state):
    """The inverse of `mixed`."""
    state = state ^ state >> 31 ^ state >> 62
    state = state * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    state = state ^ state >> 27 ^ state >> 54
    state = state * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return state ^ state >> 30 ^ state >> 60


def key_with_hash(vocabulary, wanted):
    """The key of a vocabulary that has this hash."""
    key = unmixed(wanted) ^ mixed((vocabulary + 1) * 0x9E3779B97F4A7C15)
    return (vocabulary, key - 2**64 if key >> 63 else key)


def asked(keys):
    vocabularies, numbers = zip(*keys, strict=True) if keys else ((), ())
    return np.array(vocabularies, np.uint16), np.array(numbers, np.int64)


def found(index, keys, checks=None):
    rows = np.full(len(keys), -7)
    missing = index.find(*asked(keys), rows, checks=checks)
    assert missing == (rows == -1).sum()
    return rows.tolist()


def inserted(index, keys, checks=None):
    rows = np.full(len(keys), -7)
    index.insert(*asked(keys), rows, checks=checks)
    return rows.tolist()


def check_all(index, naive, others):
    every = list(naive.rows)
    assert found(index, every, np.array([naive.checks[key] for key in every], np.uint32)) == list(naive.rows.values())
    missing = [key for key in others if key not in naive.rows]
    assert found(index, missing) == [-1] * len(missing)
    assert len(index) == naive.count
    rows = np.array(sorted(naive.rows.values()), np.int64)
    of = {row: key for key, row in naive.rows.items()}
    assert list(zip(index.vocabularies_of(rows).tolist(), index.keys_of(rows).tolist(), strict=True)) == [
        of[row] for row in rows.tolist()
    ]
    assert np.flatnonzero(index.is_free(np.arange(len(index)))).tolist() == naive.free


keys = st.tuples(st.sampled_from([0, 1, 65535]), st.sampled_from(EXTREMES) | st.integers(-20, 20))
calls = st.lists(
    st.tuples(st.just("insert"), st.lists(keys, max_size=60)) | st.tuples(st.just("drop"), st.floats(0, 1)), max_size=10
)


@pytest.fixture(params=[(9, 3), (1, 1), (1 << 15, 1)], ids=["threads", "many shards", "one shard"], scope="module")
def pool(request):
    keys_per_shard, threads = request.param
    with pytest.MonkeyPatch.context() as patch, closing(ThreadPool(threads)) as pool:
        patch.setattr(key_index, "_KEYS_PER_SHARD", keys_per_shard)
        patch.setattr(key_index, "_LEAST_KEYS", 1)
        yield pool


@settings(deadline=None, max_examples=100 if JIT else 30)
@given(calls=calls, seed=st.integers(0, 9))
def test_rows_are_those_of_the_dictionary(pool, calls, seed):
    index, naive, rng = KeyIndex("t", 200, pool=pool), NaiveIndex(), np.random.default_rng(seed)
    others = [(vocabulary, key) for vocabulary in (0, 1, 2) for key in EXTREMES]
    for call, argument in calls:
        if call == "insert":
            checks = np.array([hash(key) & 0xFFFFFFFF for key in argument], np.uint32)
            rows, before = np.full(len(argument), -7), len(naive.rows)
            new = index.insert(*asked(argument), rows, checks=checks)
            assert rows.tolist() == [
                naive.insert(key, check) for key, check in zip(argument, checks.tolist(), strict=True)
            ]
            assert new == len(naive.rows) - before
        else:
            rows = np.array([row for row in naive.rows.values() if rng.random() < argument], np.int64)
            index.drop(rows)
            for row in rows.tolist():
                naive.drop(row)
        check_all(index, naive, others)
    copy = KeyIndex("t", 200, pool=pool)
    inserted(copy, others)  # is forgotten
    copy.load(index.arrays())
    check_all(copy, naive, others)
    new = [(7, key) for key in range(40)]
    assert inserted(copy, new) == inserted(index, new) == [naive.insert(key, 0) for key in new]
    for name, array in index.arrays().items():
        assert copy.arrays()[name].tobytes() == array.tobytes()


def test_many_keys_of_many_shapes_and_what_they_cost():
    count = 300_000 if JIT else 400
    rng = np.random.default_rng(3)
    shapes = {
        "counted": np.arange(count),
        "in the high bits": np.arange(count) << 40,
        "random": rng.integers(-(2**62), 2**62, count),
    }
    for name, numbers in shapes.items():
        index, rows = KeyIndex("t", count), np.empty(count, np.int64)
        vocabularies = (np.arange(count) % 3).astype(np.uint16)
        assert index.insert(vocabularies, numbers, rows) == count and (rows == np.arange(count)).all()
        order = rng.permutation(count)
        assert index.find(vocabularies[order], numbers[order], rows) == 0 and (rows == order).all(), name
        assert index.find((vocabularies + 3).astype(np.uint16), numbers, rows) == count and (rows == -1).all()
        assert not JIT or index.nbytes <= 24 * count, name


def test_small_tables_are_small_whatever_their_capacity():
    index = KeyIndex("t", key_index.MAX_CAPACITY)
    inserted(index, [(0, key) for key in range(100)])
    assert index.nbytes < 1 << 19
    index = KeyIndex("t", 1000)
    inserted(index, [(0, key) for key in range(100)])
    assert index.nbytes < 3000


def test_a_full_table_says_so_and_keeps_what_it_has():
    index = KeyIndex("users", 3)
    with pytest.raises(InputError, match=r"^keys.capacity: table users: all 3 rows are taken .*key -5$"):
        inserted(index, [(0, 8), (1, 8), (0, 8), (2, 8), (0, -5), (0, 9)])
    assert found(index, [(0, 8), (1, 8), (2, 8), (0, -5)]) == [0, 1, 2, -1]
    assert inserted(index, [(2, 8), (0, 8)]) == [2, 0]
    index.drop(np.array([1]))
    assert inserted(index, [(0, -5)]) == [1]


def test_a_fingerprint_with_another_check_is_refused():
    index = KeyIndex("t", 10)
    checks = np.array([5, 2**32 - 1], np.uint32)
    inserted(index, [(0, -2), (1, -2)], checks)
    assert found(index, [(0, -2), (1, -2)], checks) == [0, 1]
    for act in (found, inserted):
        with pytest.raises(InputError, match=r"table t: .*vocabulary 1 .*fingerprint -2 \(fffffffffffffffe\)"):
            act(index, [(0, -2), (1, -2)], np.array([5, 6], np.uint32))
        with pytest.raises(InputError, match="vocabulary 0"):
            act(index, [(0, -2)])
    assert len(index) == 2


@pytest.mark.parametrize("keys_per_shard", [1, 1 << 15])
def test_keys_whose_hashes_are_alike_are_told_apart(monkeypatch, keys_per_shard):
    """They have one tag, begin at one slot, and fill its cache line and the next ones."""
    monkeypatch.setattr(key_index, "_KEYS_PER_SHARD", keys_per_shard)
    hashes = [0xFEDCBA9876543210 ^ low for low in range(40)]
    every = [key_with_hash(vocabulary, hashed) for hashed in hashes for vocabulary in (0, 65535)]
    index, known = KeyIndex("t", 200), every[: len(every) // 2]
    assert inserted(index, known + known[::-1]) == [*range(40), *reversed(range(40))]
    assert found(index, every) == [*range(40), *[-1] * 40]
    assert number_distinct(*asked(every), np.zeros(0, np.uint32))[0].tolist() == list(range(80))
    index.drop(np.arange(0, 40, 2))
    assert found(index, known) == [row if row % 2 else -1 for row in range(40)]
    assert inserted(index, every) == [*range(40), *range(40, 80)]


def test_keys_before_one_with_two_checks_have_their_rows():
    index = KeyIndex("t", 10)
    inserted(index, [(0, 1)])
    keys, checks = [(0, 7), (0, 1), (0, 7), (0, 8), (0, 7), (0, 9)], np.array([4, 0, 4, 0, 5, 0], np.uint32)
    with pytest.raises(InputError, match="two different texts of vocabulary 0 have the fingerprint 7"):
        inserted(index, keys, checks)
    assert found(index, keys, np.array([4, 0, 4, 0, 4, 0], np.uint32)) == [1, 0, 1, 2, 1, -1]
    with pytest.raises(InputError, match="the fingerprint 1 "):  # of a key that was there before
        inserted(index, [(0, 5), (0, 1), (0, 6)], np.array([0, 3, 0], np.uint32))
    assert found(index, [(0, 5), (0, 6)]) == [3, -1] and len(index) == 4


@pytest.mark.skipif(not JIT, reason="too many keys without the JIT")
def test_few_shards_grow_in_one_batch_and_threads_change_nothing(monkeypatch):
    monkeypatch.setattr(key_index, "_KEYS_PER_SHARD", 1 << 10)
    count, batch, zeros = 1 << 18, 1 << 12, np.zeros(1 << 12, np.uint16)
    keys, grown = np.random.default_rng(0).permutation(count), []
    move = Shards._move

    def counted(self, shards, size_classes):
        grown[-1].append(shards.size)
        move(self, shards, size_classes)

    monkeypatch.setattr(Shards, "_move", counted)
    with closing(ThreadPool(2)) as pool:
        monkeypatch.setattr(key_index, "_LEAST_KEYS", 1)
        one, two, rows = KeyIndex("t", count), KeyIndex("t", count, pool=pool), np.empty(batch, np.int64)
        for index in (one, two):
            for first in range(0, count, batch):
                grown.append([0])
                assert index.insert(zeros, keys[first : first + batch], rows, distinct=True) == batch
                assert rows.tolist() == list(range(first, first + batch))
    assert max(map(max, grown[len(grown) // 4 : len(grown) // 2])) < 256 // 5, "of as many shards"
    assert one.nbytes == two.nbytes


def test_rows_to_drop_must_be_in_use_and_named_once():
    index = KeyIndex("t", 10)
    inserted(index, [(0, key) for key in range(4)])
    index.drop(np.array([3, 1]))
    for rows in ([1], [0, 0], [4], [-1]):
        with pytest.raises(ValueError, match="rows"):
            index.drop(np.array([2, *rows]))
    assert found(index, [(0, key) for key in range(4)]) == [0, -1, 2, -1]


def test_damaged_or_too_many_saved_keys_are_refused():
    index = KeyIndex("t", 10)
    inserted(index, [(0, key) for key in range(4)])
    index.drop(np.array([2]))
    arrays = index.arrays()
    assert arrays["keys"].tolist() == [0, 1, 0, 3] and arrays["free"].tolist() == [2]
    with pytest.raises(InputError, match="4 saved keys"):
        KeyIndex("t", 3).load(arrays)
    for damage in ({"keys": np.array([0, 1, 0, 1])}, {"free": np.array([4])}, {"free": np.array([2, 1])},
                   {"checks": np.zeros(3, np.uint32)}):  # fmt: skip
        with pytest.raises(InputError, match="damaged"):
            index.load({**arrays, **damage})
        assert len(index) == 0 and found(index, [(0, 0)]) == [-1]
    left = {"keys": np.array([0, 1, 9, 3]), "checks": np.array([0, 0, 9, 0], np.uint32)}  # in the free row
    index.load({**arrays, **left})
    assert all(np.array_equal(array, arrays[name]) for name, array in index.arrays().items())
    assert inserted(index, [(0, 3), (0, 7), (0, 8)]) == [3, 2, 4]


def test_wrong_arrays_are_refused():
    index, (vocabularies, numbers), rows = KeyIndex("t", 10), asked([(0, 1), (0, 2)]), np.empty(2, np.int64)
    for wrong in ((vocabularies.astype(np.int64), numbers, rows), (vocabularies, numbers.astype(np.int32), rows),
                  (vocabularies, numbers, rows[:1]), (vocabularies[:1], numbers, rows),
                  (vocabularies, numbers, rows, rows)):  # fmt: skip
        for act in (index.find, index.insert):
            with pytest.raises(ValueError, match="must be"):
                act(*wrong)
    with pytest.raises(ValueError, match="capacity"):
        KeyIndex("t", key_index.MAX_CAPACITY + 1)
    every_other = np.arange(8).repeat(2)[::2]
    index.insert(np.broadcast_to(np.uint16(1), 8), every_other, out := np.empty(8, np.int64))
    assert out.tolist() == list(range(8))


def test_initial_keys_are_one_number_a_key():
    index = KeyIndex("t", 600)
    every = [(vocabulary, key) for vocabulary in (0, 1, 2, 65535) for key in [*EXTREMES, *range(2, 100)]]
    inserted(index, every)
    numbers = index.initial_keys(np.arange(len(every)))
    assert len(set(numbers.tolist())) == len(every)
    assert numbers.tobytes() == initial_keys(*asked(every)).tobytes()
    assert [number % 2**64 for number in numbers.tolist()] == [
        mixed(key % 2**64 ^ mixed((vocabulary + 1) * 0x9E3779B97F4A7C15)) for vocabulary, key in every
    ]


@pytest.mark.parametrize("keys_per_shard", [16, 1 << 15])
def test_readers_beside_an_insert_find_all_there_was_and_nothing_else(monkeypatch, keys_per_shard):
    monkeypatch.setattr(key_index, "_KEYS_PER_SHARD", keys_per_shard)
    count, batch = (150_000, 500) if JIT else (600, 20)
    rng = np.random.default_rng(0)
    numbers = rng.permutation(2 * count) - count
    known, never = numbers[:count].copy(), numbers[count:].copy()
    zeros = np.zeros(batch, np.uint16)
    index = KeyIndex("t", count)

    def insert():
        rows = np.empty(batch, np.int64)
        for first in range(0, count, batch):
            # Half of a batch is known already.
            again = np.concatenate([known[max(first - batch // 2, 0) : first], known[first : first + batch]])[:batch]
            index.insert(zeros[: again.size], again, rows[: again.size])
            index.insert(zeros, known[first : first + batch], rows)
            assert (rows == np.arange(first, first + batch)).all()

    def search(seed):
        rng, rows, rounds = np.random.default_rng(seed), np.empty(batch, np.int64), 0
        while len(index) < count or not rounds:
            before = len(index)
            places = rng.integers(max(before - 2 * batch, 0) if rounds % 2 else 0, min(before + batch, count), batch)
            missing = index.find(zeros, known[places], rows)
            assert missing == (rows == -1).sum()
            assert ((rows == places) | ((rows == -1) & (places >= before))).all()
            assert index.find(zeros, never[places], rows) == batch and (rows == -1).all()
            rounds += 1

    with ThreadPoolExecutor(3) as threads:
        for outcome in [threads.submit(insert), threads.submit(search, 1), threads.submit(search, 2)]:
            outcome.result()
    assert len(index) == count


def test_slots_that_were_replaced_live_as_long_as_the_call_that_may_see_them():
    index = KeyIndex("t", 10_000)
    inserted(index, [(0, 0)])
    call = index._shards.epoch  # what `find` holds while it runs
    for key in range(1, 200):
        inserted(index, [(0, key)])
    replaced, epoch = [], call
    while epoch is not None:
        replaced += [array.size for array in epoch.replaced if array is not None]
        epoch = epoch.following
    assert len(replaced) >= 5 and replaced == sorted(replaced)
    assert not index._shards.epoch.replaced, "nothing is held for calls to come"


class Disk:
    """In the place of `posix_fallocate`: notes what was asked for, and has no room beyond `room` bytes."""

    def __init__(self, monkeypatch, room):
        self.taken, self._room = 0, room
        monkeypatch.setattr(os, "posix_fallocate", self)

    def __call__(self, descriptor, start, count):
        assert start == self.taken and count > 0
        if start + count > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.taken += count


def test_a_table_without_rows_has_no_keys_wherever_they_would_lie(tmp_path):
    for folder in (None, tmp_path):
        index = KeyIndex("t", 0, folder)
        assert found(index, [(0, 1)]) == [-1] and inserted(index, []) == [] and len(index) == 0
        with pytest.raises(InputError, match="all 0 rows are taken"):
            inserted(index, [(0, 1)])


@pytest.mark.skipif(not JIT, reason="too many keys without the JIT")
def test_keys_in_a_file_take_their_place_on_the_disk_before_they_are_written(tmp_path, monkeypatch):
    """A page of a mapped file that the disk has no room for ends the process."""
    disk, capacity = Disk(monkeypatch, 1 << 40), 1 << 20
    index, rows, each = KeyIndex("t", capacity, tmp_path), np.empty(1 << 17, np.int64), np.zeros(1 << 17, np.uint16)
    assert disk.taken == 0 and list(tmp_path.iterdir()) == []
    for first in range(0, capacity, rows.size):
        index.insert(each, np.arange(first, first + rows.size), rows)
        needed = len(index) * key_index.RECORD.itemsize
        assert needed <= disk.taken < needed + (4 << 20)
    before = disk.taken
    index.insert(each, np.arange(rows.size), rows)
    assert disk.taken == before == capacity * key_index.RECORD.itemsize, "there are no more rows"

    saved = index.arrays()
    disk.taken = 0
    KeyIndex("t", 2 * capacity, tmp_path).load(saved)
    assert disk.taken == capacity * key_index.RECORD.itemsize


@pytest.mark.skipif(not JIT, reason="too many keys without the JIT")
def test_keys_that_the_disk_has_no_room_for_are_an_error_that_names_the_folder(tmp_path, monkeypatch):
    Disk(monkeypatch, 4 << 20)
    index, fits = KeyIndex("t", 1 << 20, tmp_path), (4 << 20) // key_index.RECORD.itemsize
    zeros, rows = np.zeros(fits, np.uint16), np.empty(fits, np.int64)
    index.insert(zeros, np.arange(fits), rows)
    saved = index.arrays()
    with pytest.raises(OSError, match="No space left on device") as caught:
        index.insert(zeros[:1], np.array([fits]), rows[:1])
    assert caught.value.filename == str(tmp_path)
    assert len(index) == fits and index.find(zeros, np.arange(fits), rows) == 0, "the others are there"

    more = {name: np.append(array, array[-1:]) for name, array in saved.items() if name != "free"}
    Disk(monkeypatch, 4 << 20)
    other = KeyIndex("t", 1 << 20, tmp_path)
    with pytest.raises(OSError, match="No space left on device"):
        other.load(more | {"free": saved["free"]})
    assert len(other) == 0
