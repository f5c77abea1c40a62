"""A store whose rows belong to keys: the index of keys, admission of new keys, removal of old ones.

Guarantees:
- Any number of threads may call `find` while one thread calls `admit` or `seen_in`.
- `admit` and `seen_in` are called by one thread at a time; a row is in the store, with its initial value, before
  `admit` returns it.
- `drop_unseen`, `arrays` and `load` are called while nothing else uses the table.
- Which key gets which row is a function only of the calls of `admit` and `drop_unseen`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.thread_pool import ALONE, ThreadPool
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore
from marius_oac.storage.keys.distinct import number_distinct
from marius_oac.storage.keys.index import KeyIndex, initial_keys, saved_array

NO_KEY = -(2**63) + 1
"""The key, in every vocabulary, whose row is shared by keys that are not admitted yet."""
LAST_SHARED = NO_KEY + 256
"""Keys from `NO_KEY` up to this one have such rows: `NO_KEY` on one machine, the others over nodes."""

SharedKeys = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The key, int64 [n], whose row a key uses before it is admitted; of vocabularies, uint16 [n], and keys, int64 [n]."""


def shared_by_all(vocabularies: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The `SharedKeys` of one machine: one row for each vocabulary."""
    return np.full(keys.size, NO_KEY)


class KeyTable:
    """The keys of one store.

    Args:
        store: gets a row for every new key; empty at first.
        admit_after: a key gets its own row when it has been seen so often. Before, it uses a shared row. 1: at once.
        drop_after: `drop_unseen` removes keys that were not in the last so many files; 0: never.
        folder: for files with the keys; None: they are in memory.
        pool: looks up and inserts.
        shared: which row that is, by the first of them; those that a table of other origin may have follow, for
            look-ups.
    """

    def __init__(
        self,
        store: ParameterStore,
        admit_after: int = 1,
        drop_after: int = 0,
        folder: Path | None = None,
        shared: Sequence[SharedKeys] = (shared_by_all,),
        pool: ThreadPool = ALONE,
    ):
        self.store, self.index, self._pool = store, KeyIndex(store.name, store.capacity, folder, pool), pool
        self._admit_after, self._drop_after, self._shared = admit_after, drop_after, shared
        self._waiting: KeyIndex | None = None
        if admit_after > 1:
            self._waiting = KeyIndex(f"{store.name}, not admitted", store.capacity, folder, pool)
        self._seen = np.zeros(0, np.int64)  # how often each waiting key was seen
        self._last_file = np.zeros(0, np.int32)  # the last file with each row's key
        self.dropped = 0

    @property
    def capacity(self) -> int:
        """The largest number of rows."""
        return self.store.capacity

    @property
    def counts_keys(self) -> bool:
        """Whether it matters how often a key was seen."""
        return self._waiting is not None

    @property
    def waiting(self) -> int:
        """The number of keys that were seen but not admitted."""
        return len(self._waiting) if self._waiting is not None else 0

    def find(self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> np.ndarray:
        """The row of each key, int64 [n]; -1: it has none. Arguments and errors are those of `KeyIndex.find`."""
        rows = np.empty(keys.size, np.int64)
        self.index.find(vocabularies, keys, rows, checks=checks)
        return rows

    def admit(
        self,
        vocabularies: np.ndarray,
        keys: np.ndarray,
        checks: np.ndarray,
        rows: np.ndarray,
        counts: np.ndarray | None = None,
        *,
        distinct: bool = False,
    ) -> None:
        """Replaces the rows, int64 [n], of a batch's keys that `find` did not find, in place.

        Args:
            vocabularies, keys, checks: as for `find`.
            rows: the result of `find`.
            counts: how often each key was seen, an integer [n]; None: once.
            distinct: see `KeyIndex.insert`.

        Raises:
            InputError: the table is full, or two texts have the same fingerprint.
        """
        places = np.flatnonzero(rows < 0)
        if places.size:
            asked = vocabularies[places], keys[places], checks[places]
            found = self.find(*asked) if self._admit_after > 1 else np.empty(places.size, np.int64)
            if self._waiting is not None:
                times = np.ones(places.size, np.int64) if counts is None else counts[places]
                asked = self._admitted(self._waiting, *asked, found, times)
            # Keys that are not admitted yet share a key.
            rows[places] = self._insert(*asked, distinct=distinct and self._waiting is None)

    def seen_in(self, rows: np.ndarray, file: int) -> None:
        """Notes that a file has the keys of these rows, int64 [n]; called in the order of the batches."""
        if self._drop_after:
            self._last_file[rows] = file

    def look_up(
        self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows for reading, float32 [m, width]; each key's index among them, int64 [n]; and whether it has no row, bool
        [n].

        A key without a row gets its initial row, or, with `admit_after` above 1, the shared row. Arguments are as for
        `find`.
        """
        numbers, firsts, _ = number_distinct(vocabularies, keys, checks, self._pool)
        vocabularies, keys, checks = vocabularies[firsts], keys[firsts], checks[firsts]
        rows = self.find(vocabularies, keys, checks)
        unknown = rows < 0
        for shared in self._shared if self._admit_after > 1 else ():
            rare = np.flatnonzero(rows < 0)
            asked = vocabularies[rare], shared(vocabularies[rare], keys[rare]), np.zeros(rare.size, np.uint32)
            rows[rare] = self.find(*asked)
        missing = np.flatnonzero(rows < 0)
        known = np.unique(rows[rows >= 0])
        first_keys, of_missing = np.unique(initial_keys(vocabularies[missing], keys[missing]), return_inverse=True)
        values = np.empty((known.size + first_keys.size, self.store.layout.width), np.float32)
        self.store.read(known, values[: known.size], np.empty(known.size, np.int64))
        self.store.initial.fill(first_keys, values[known.size :], self.store.layout.dimension)
        local = np.searchsorted(known, rows)
        local[missing] = known.size + of_missing
        return values, local[numbers], unknown[numbers]

    def _insert(self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray, distinct: bool) -> np.ndarray:
        rows, before = np.empty(keys.size, np.int64), self.store.num_rows
        known = self.find(vocabularies, keys, checks) if self.dropped else None
        if self.index.insert(vocabularies, keys, rows, checks=checks, distinct=distinct):
            if known is not None:  # new keys may have got rows of dropped keys
                again = np.unique(rows[(known < 0) & (rows < before)])
                self.store.reset(again, self.index.initial_keys(again))
            added = np.arange(before, len(self.index))
            self.store.extend(self.index.initial_keys(added))
            if self._drop_after:
                self._last_file = grown(self._last_file, len(self.index))
        return rows

    def _admitted(
        self,
        seen: KeyIndex,
        vocabularies: np.ndarray,
        keys: np.ndarray,
        checks: np.ndarray,
        found: np.ndarray,
        times: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The keys to insert: those `seen` often enough, and those of shared rows instead of the others."""
        vocabularies, keys, checks = vocabularies.copy(), keys.copy(), checks.copy()
        new = np.flatnonzero(found < 0)
        waiting = np.empty(new.size, np.int64)
        seen.insert(vocabularies[new], keys[new], waiting, checks=checks[new])
        self._seen = grown(self._seen, len(seen))
        np.add.at(self._seen, waiting, times[new].astype(np.int64))
        rare = new[self._seen[waiting] < self._admit_after]
        keys[rare], checks[rare] = self._shared[0](vocabularies[rare], keys[rare]), 0
        return vocabularies, keys, checks

    def drop_unseen(self, file: int) -> int:
        """Removes the keys that were in none of the last `drop_after` files before number `file`. Returns how many."""
        if not self._drop_after:
            return 0
        count = len(self.index)
        old = np.flatnonzero(self._last_file[:count] < file - self._drop_after)
        old = old[~is_shared(self.index.keys_of(old))]
        old = old[~self.index.is_free(old)]
        self.index.drop(old)
        self.dropped += old.size
        return old.size

    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the rows with their keys, in the order of vocabularies and keys."""
        every = np.arange(len(self.index))
        every = every[~self.index.is_free(every)]
        order = every[np.lexsort((self.index.keys_of(every), self.index.vocabularies_of(every)))]
        digest = hashlib.sha256()
        for first in range(0, order.size, ROWS_PER_BLOCK):
            rows, back = np.unique(order[first : first + ROWS_PER_BLOCK], return_inverse=True)
            values = np.empty((rows.size, self.store.layout.width), np.float32)
            self.store.read(rows, values, np.empty(rows.size, np.int64))
            digest.update(self.index.vocabularies_of(rows)[back].astype("<u2").tobytes())
            digest.update(self.index.keys_of(rows)[back].astype("<i8").tobytes())
            digest.update(values[back].astype("<f4").tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        """The number of keys with a row."""
        return len(self.index) - int(self.index.is_free(np.arange(len(self.index))).sum())

    def arrays(self) -> dict[str, np.ndarray]:
        """The state besides the rows, for a checkpoint: arrays [n] by name."""
        state = {f"index.{name}": array for name, array in self.index.arrays().items()}
        if self._waiting is not None:
            state |= {f"waiting.{name}": array for name, array in self._waiting.arrays().items()}
            state["seen"] = self._seen[: len(self._waiting)]
        if self._drop_after:
            state["last_file"] = self._last_file[: len(self.index)]
            state["dropped"] = np.array([self.dropped])
        return state

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the state by the result of `arrays`. The rows must be loaded separately.

        Raises:
            InputError: the arrays don't match each other or this table.
        """
        self.index.load(_of(arrays, "index."))
        if self._waiting is not None:
            self._waiting.load(_of(arrays, "waiting."))
            self._seen = self._saved(arrays, "seen", np.int64, len(self._waiting))
        if self._drop_after:
            self._last_file = self._saved(arrays, "last_file", np.int32, len(self.index))
            self.dropped = int(self._saved(arrays, "dropped", np.int64, 1)[0])
        self.store.resize(len(self.index))

    def _saved(self, arrays: Mapping[str, np.ndarray], name: str, dtype: type, count: int) -> np.ndarray:
        array = saved_array(arrays, name, dtype, self.store.name)
        if array.size != count:
            wrong = f"{name!r} has {array.size:,} numbers, not {count:,}"
            raise InputError(f"table {self.store.name}: the saved keys are damaged: {wrong}")
        return np.array(array)


def _of(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def is_shared(keys: np.ndarray) -> np.ndarray:
    """Whether each key, int64 [n], is one of those that have shared rows, bool [n]."""
    return (keys >= NO_KEY) & (keys <= LAST_SHARED)


def grown(array: np.ndarray, count: int) -> np.ndarray:
    """The array, [n], with at least `count` elements, the new ones 0; it grows by at least half."""
    if count <= array.size:
        return array
    larger = np.zeros(max(count, array.size * 3 // 2), array.dtype)
    larger[: array.size] = array
    return larger
