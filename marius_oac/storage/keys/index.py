"""An exact index from keys to rows of a table, which grows while it is read.

A row needs 16 bytes for its key and 5 to 8.5 bytes of slots, 6.6 on average: `kernels.cpu.keys` describes the layout,
`keys.shards` how slots grow. The records of rows are reserved for the whole capacity and allocated as rows are added,
so they never move. They may be in a file that the system pages, whose disk space is allocated as rows are added; a
search reads the record of the row it finds, and rarely another one. The slots are divided into many shards. A shard
that would be more than four fifths full grows, by 0.7 or as much as a batch needs: it is built separately, then
published by one store. Shards grow at different times, a few in each batch.

Both look-ups and insertions share their work with the threads of a pool: look-ups by parts of the batch, insertions by
shards, each of which one thread fills. New rows are numbered before that by one thread.

Guarantees:
- Any number of threads may call `find` while one thread calls `insert`; it takes no lock and never waits for an
  insertion. A key that was inserted before `find` began is found; a key that was never inserted is not; a key that is
  being inserted may or may not be found. `len`, `nbytes` and the properties of assigned rows may be read at any time.
- `insert` is called by one thread at a time; `drop` and `load` while nothing else uses the index.
- Which key gets which row is a function only of the calls of `insert` and `drop`, not of the number of threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from marius_oac.errors import InputError
from marius_oac.kernels.cpu import keys as kernels
from marius_oac.kernels.cpu.keys import FREE, FREE_TAKEN, LIVE, NUM_ROWS, RECORD
from marius_oac.kernels.overflow import overflowing
from marius_oac.runtime.thread_pool import ALONE, ThreadPool
from marius_oac.storage.keys.distinct import fingerprint_taken, number_distinct
from marius_oac.storage.keys.shards import Epoch, Shards
from marius_oac.storage.reserved import MappedFile, reserve

MAX_CAPACITY = (1 << 32) - 2

# Keys in a shard of a full table: 1 to 2 ms to grow, and a directory that the L1 cache holds at 33 million keys.
_KEYS_PER_SHARD = 1 << 15
_MAX_SHARDS = 1 << 14
_HUGE_PAGE = 1 << 21
_ROWS_PER_BLOCK = 1 << 16
_LEAST_KEYS = 1 << 13  # for a thread: looking them up takes as long as handing them over ten times
_SAVED = {"keys": np.int64, "vocabularies": np.uint16, "checks": np.uint32, "free": np.int64}
_NO_CHECKS = np.empty(0, np.uint32)


def saved_array(arrays: Mapping[str, np.ndarray], name: str, dtype: type, table: str) -> np.ndarray:
    """One of the saved arrays, [n]. Raises InputError if it is missing or has another type."""
    array = arrays.get(name)
    if array is None or array.dtype != dtype or array.ndim != 1:
        found = "missing" if array is None else f"{array.dtype} {list(array.shape)}, not {np.dtype(dtype)} [n]"
        raise InputError(f"table {table}: the saved keys are damaged: {name!r} is {found}")
    return array


def initial_keys(vocabularies: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """A 64-bit number for each (vocabulary, key), int64 [n], for `RowInitial.fill`.

    The numbers of different keys of a vocabulary differ; those of two vocabularies are equal with probability 2**-64.

    Args:
        vocabularies: uint16 [n].
        keys: int64 [n].

    Raises:
        ValueError: an array has another type or shape.
    """
    out = np.empty(keys.size, np.int64)
    with overflowing():  # the hash relies on overflow
        kernels.hashes(*_prepared(vocabularies, keys), out)
    return out


def _prepared(vocabularies: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for name, array, dtype in (("vocabularies", vocabularies, np.uint16), ("keys", keys, np.int64)):
        if array.dtype != dtype or array.shape != (keys.size,):
            raise ValueError(f"{name} must be {np.dtype(dtype)} [{keys.size}], not {array.dtype} {list(array.shape)}")
    return np.ascontiguousarray(vocabularies), np.ascontiguousarray(keys)


class KeyIndex:
    """Rows of one table by (vocabulary, key).

    Keys that are 64-bit fingerprints of texts come with `checks`, uint32 [n], a second fingerprint of the same texts;
    otherwise all checks are 0.

    Args:
        name: of the table, for messages.
        capacity: the largest number of rows, at most `MAX_CAPACITY`.
        folder: for a file with the records of rows; None: they are in memory.
        pool: looks up and inserts.

    Raises:
        ValueError: the capacity is invalid.
        OSError: there is not enough address space, or no file can be made in `folder`.
    """

    def __init__(self, name: str, capacity: int, folder: Path | None = None, pool: ThreadPool = ALONE) -> None:
        if not 0 <= capacity <= MAX_CAPACITY:
            raise ValueError(f"table {name!r}: capacity {capacity} is not in 0 to {MAX_CAPACITY}")
        self.name, self.capacity, self._pool = name, capacity, pool
        size = capacity * RECORD.itemsize
        self._file = MappedFile(size, folder=folder) if folder is not None else None
        memory = self._file.memory if self._file else reserve(size, _HUGE_PAGE)
        self._records = np.frombuffer(memory, RECORD, capacity)
        self._num_shards = min(max(capacity // _KEYS_PER_SHARD, 1), _MAX_SHARDS)
        self._clear()

    def _clear(self) -> None:
        """No rows, no slots."""
        self._counters = np.zeros(2, np.int64)
        self._free = np.empty(0, np.int64)  # ascending
        records = self._records.ctypes.data if self.capacity else 0
        self._shards = Shards(self._num_shards, records, self.capacity, self._pool)
        self._index = self._shards.index

    def __len__(self) -> int:
        """The number of rows assigned so far, including dropped ones, which is the next new row."""
        return int(self._counters[NUM_ROWS])

    @property
    def nbytes(self) -> int:
        """The memory in use, in bytes."""
        return len(self) * RECORD.itemsize + self._shards.nbytes

    def find(
        self, vocabularies: np.ndarray, keys: np.ndarray, rows: np.ndarray, checks: np.ndarray | None = None
    ) -> int:
        """Writes the row of each key, -1 if it has none, to `rows`, int64 [n]. Returns how many have none.

        Args:
            vocabularies: uint16 [n].
            keys: int64 [n].
            checks: uint32 [n]; None: all 0.

        Raises:
            InputError: a key exists with another check, that is, two texts have the same fingerprint.
            ValueError: an array has another type or shape.
        """
        return self._find(self._shards.epoch, *self._asked(vocabularies, keys, checks, rows), rows)

    def _find(
        self, epoch: Epoch, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray, rows: np.ndarray
    ) -> int:
        """`find`, which holds `epoch` until it returns; see the guarantees."""
        missing, collision = self._look_up(vocabularies, keys, checks, rows)
        if collision >= 0:
            raise fingerprint_taken(self.name, vocabularies[collision], keys[collision])
        return missing

    def _look_up(
        self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray, rows: np.ndarray
    ) -> tuple[int, int]:
        """Fills in `rows`; returns how many keys have none, and the first that exists with another check, or -1."""

        if self._pool.count == 1:  # slices and calls from Python take longer than a small batch
            with overflowing():
                found: tuple[int, int] = kernels.find(self._index, vocabularies, keys, checks, rows)
            return found

        def part(first: int, end: int) -> tuple[int, int]:
            some = slice(first, end)
            with overflowing():
                found = kernels.find(self._index, vocabularies[some], keys[some], checks[some], rows[some])
            return found[0], found[1] if found[1] < 0 else first + found[1]

        parts = self._pool.over(keys.size, _LEAST_KEYS, part)
        return sum(missing for missing, _ in parts), next((at for _, at in parts if at >= 0), -1)

    def insert(
        self,
        vocabularies: np.ndarray,
        keys: np.ndarray,
        rows: np.ndarray,
        checks: np.ndarray | None = None,
        distinct: bool = False,
    ) -> int:
        """As `find`, but assigns a row to each key without one, in order of first occurrence: the lowest dropped row,
        else the next number. Returns how many are new.

        Args:
            distinct: no key comes twice, which saves looking for those that do.

        Raises:
            InputError: no row is left, or a key exists with another check. The keys before that one have their rows.
            OSError: the disk is full. Nothing was inserted.
            ValueError: an array has another type or shape.
        """
        asked = self._asked(vocabularies, keys, checks, rows)
        _, collision = self._look_up(*asked, rows)
        new = np.flatnonzero(rows[: collision if collision >= 0 else rows.size] < 0)
        some = asked if new.size == keys.size else _taken(asked, new)
        numbers, firsts = None, np.arange(new.size)
        if new.size and not distinct:
            numbers, firsts, twice = number_distinct(*some, self._pool)
            if twice >= 0:
                collision, new, numbers, firsts = new[twice], new[:twice], numbers[:twice], firsts[firsts < twice]
        given = self._add(*(some if firsts.size == some[1].size else _taken(some, firsts))) if new.size else new
        end = new.size if given.size == firsts.size else int(firsts[given.size])
        rows[new[:end]] = given if numbers is None else given[numbers[:end]]
        if end < new.size:
            raise InputError(
                f"table {self.name}: all {self.capacity} rows are taken and there is none for key {keys[new[end]]}",
                "keys.capacity",
            )
        if collision >= 0:
            raise fingerprint_taken(self.name, vocabularies[collision], keys[collision])
        return given.size

    def _add(self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> np.ndarray:
        """Gives rows to different keys that have none, in their order: int64 [n], or fewer if the table is full."""
        self._make_room(len(self) + keys.size)
        rows, hashed = np.empty(keys.size, np.int64), np.empty(keys.size, np.uint64)
        counts, counters = np.zeros(self._num_shards, np.int64), self._counters.copy()
        with overflowing():
            count = kernels.number_new(
                self._index, vocabularies, keys, checks, rows, self.capacity, self._free, counters, hashed, counts
            )
        self._shards.make_room(counts)
        twice = self._place(rows[:count], hashed[:count])
        assert twice < 0
        self._shards.held += counts
        self._free = self._free[counters[FREE_TAKEN] :]
        self._counters[NUM_ROWS] = counters[NUM_ROWS]  # they can be found from here on
        return rows[:count]

    def _place(self, rows: np.ndarray, hashed: np.ndarray) -> int:
        """Puts rows into slots, each thread those of some shards. Returns a row whose key another row has, or -1."""

        def part(first: int, end: int) -> int:
            with overflowing():
                return kernels.place(self._index, rows, hashed, first, end)

        shards_at_once = max(1, _LEAST_KEYS * self._num_shards // max(rows.size, 1))
        return max(self._pool.over(self._num_shards, shards_at_once, part))

    def vocabularies_of(self, rows: np.ndarray) -> np.ndarray:
        """The vocabulary of each row's key, uint16 [n]; 0 for a free row. Rows are int64 [n]."""
        return self._of("vocabulary", rows)

    def keys_of(self, rows: np.ndarray) -> np.ndarray:
        """The key of each row, int64 [n]; 0 for a free row. Rows are int64 [n]."""
        return self._of("key", rows)

    def is_free(self, rows: np.ndarray) -> np.ndarray:
        """Whether each row was dropped and not assigned again, bool [n]. Rows are int64 [n]."""
        return self._of("state", rows) == FREE

    def initial_keys(self, rows: np.ndarray) -> np.ndarray:
        """`initial_keys` of the rows' keys, int64 [n]. Rows are int64 [n]."""
        return initial_keys(self.vocabularies_of(rows), self.keys_of(rows))

    def drop(self, rows: np.ndarray) -> None:
        """Removes the keys of `rows`, int64 [n]. Later inserts reuse the rows, the lowest first.

        Raises:
            ValueError: a row was never assigned, is free or is repeated. Nothing was dropped.
        """
        rows = np.sort(np.asarray(rows, np.int64))
        if not (self._of("state", rows) == LIVE).all() or (rows[1:] == rows[:-1]).any():
            raise ValueError(f"table {self.name!r}: rows to drop must be in use and named once")
        counts = self._hashed(rows)[1]
        self._records[rows] = (0, 0, 0, FREE)
        self._shards.held -= counts
        self._shards.rebuild(np.flatnonzero(counts))
        self._free = np.sort(np.concatenate([self._free, rows]))

    def arrays(self) -> dict[str, np.ndarray]:
        """The whole index, in row order: keys int64 [n], vocabularies uint16 [n], checks uint32 [n], and free int64
        [m], the dropped rows, ascending."""
        every = self._records[: len(self)]
        return {
            "keys": every["key"].copy(),
            "vocabularies": every["vocabulary"].copy(),
            "checks": every["check"].copy(),
            "free": self._free.copy(),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the content by the result of `arrays`.

        Raises:
            InputError: the arrays don't match each other or this table. The index is empty then.
            OSError: the disk is full. The index is empty then.
        """
        self._records[: len(self)] = (0, 0, 0, 0)
        self._clear()
        keys, vocabularies, checks, free = (saved_array(arrays, *each, self.name) for each in _SAVED.items())
        count = keys.size
        if count > self.capacity:
            raise InputError(f"table {self.name}: {count} saved keys are more than {self.capacity} rows take")
        in_order = (np.diff(free) > 0).all() and (free.size == 0 or 0 <= free[0] <= free[-1] < count)
        if not (vocabularies.size == checks.size == count and in_order):
            raise InputError(f"table {self.name}: the saved keys are damaged")
        self._make_room(count)
        every = self._records[:count]
        every["key"], every["vocabulary"], every["check"], every["state"] = keys, vocabularies, checks, LIVE
        every[free] = (0, 0, 0, FREE)
        self._free = np.array(free, np.int64)
        self._counters[NUM_ROWS] = count
        twice = self._place_all(count)
        if twice >= 0:
            self._records[:count] = (0, 0, 0, 0)
            self._clear()
            raise InputError(f"table {self.name}: the saved keys are damaged: row {twice} has the key of another")

    def _make_room(self, num_rows: int) -> None:
        """Allocates disk space for the records before the kernels write them."""
        if self._file is not None:
            self._file.take(min(num_rows, self.capacity) * RECORD.itemsize)

    def _hashed(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of rows' keys, uint64 [n], and how many each shard has, int64 [shards]."""
        hashed, counts = np.empty(rows.size, np.uint64), np.zeros(self._num_shards, np.int64)
        with overflowing():
            kernels.read_hashes(self._index, rows, hashed, counts)
        return hashed, counts

    def _place_all(self, count: int) -> int:
        """Makes slots for the live rows below `count`. Returns a row whose key another row has, or -1."""
        counts = np.zeros(self._num_shards, np.int64)
        for rows in self._live_rows(count):
            counts += self._hashed(rows)[1]
        self._shards.make_room(counts)
        self._shards.held += counts
        for rows in self._live_rows(count):
            twice = self._place(rows, self._hashed(rows)[0])
            if twice >= 0:
                return twice
        return -1

    def _live_rows(self, count: int) -> Iterator[np.ndarray]:
        for first in range(0, count, _ROWS_PER_BLOCK):
            last = min(first + _ROWS_PER_BLOCK, count)
            yield first + np.flatnonzero(self._records["state"][first:last] == LIVE)

    def _of(self, field: str, rows: np.ndarray) -> np.ndarray:
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise ValueError(f"table {self.name!r}: rows must be in 0 to {len(self) - 1}")
        return self._records[field][rows]

    def _asked(
        self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray | None, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        vocabularies, keys = _prepared(vocabularies, keys)
        if rows.dtype != np.int64 or rows.shape != keys.shape or not rows.flags.c_contiguous:
            raise ValueError(f"rows must be int64 [{keys.size}], C-contiguous, not {rows.dtype} {list(rows.shape)}")
        if checks is None:
            return vocabularies, keys, _NO_CHECKS
        if checks.dtype != np.uint32 or checks.shape != keys.shape:
            raise ValueError(f"checks must be uint32 [{keys.size}], not {checks.dtype} {list(checks.shape)}")
        return vocabularies, keys, np.ascontiguousarray(checks)


def _taken(asked: Sequence[np.ndarray], places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The vocabularies, keys and checks at some places; without checks there are none."""
    vocabularies, keys, checks = asked
    return vocabularies[places], keys[places], checks[places] if checks.size else checks
