"""The different keys of a batch: a batch looks up, and inserts, each of them once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from marius_oac.errors import InputError
from marius_oac.kernels.cpu import distinct as kernels
from marius_oac.kernels.overflow import overflowing
from marius_oac.runtime.thread_pool import ALONE, ThreadPool

_LEAST_PARTS = 4  # for a thread
_LEAST_KEYS = 1 << 14


class _Scratch(threading.local):
    """A thread's memory, used again: new memory costs as much as what is done with it here."""

    words = np.empty(0, np.int64)

    def of(self, size: int) -> np.ndarray:
        """int64 [size]."""
        if self.words.size < size:
            self.words = np.empty(size, np.int64)
        return self.words[:size]


_SCRATCH = _Scratch()


def number_distinct(
    vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray, pool: ThreadPool = ALONE
) -> tuple[np.ndarray, np.ndarray, int]:
    """Numbers a batch's different keys in the order of their first occurrence.

    A key with two checks counts as two.

    Args:
        vocabularies: uint16 [n].
        keys: int64 [n].
        checks: uint32 [n], or [0]: all are 0.

    Returns:
        The number of each key, int32 [n]; the position of each number's first key, int64 [m], ascending; and the first
        position whose key comes before it with another check, or -1.

    Raises:
        ValueError: there are `MAX_KEYS` keys or more.
    """
    numbers, firsts, twice = _numbered(vocabularies, keys, checks, pool)
    return numbers, firsts.copy(), twice


def _numbered(
    vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray, pool: ThreadPool
) -> tuple[np.ndarray, np.ndarray, int]:
    """`number_distinct`, with positions that stay until this thread's next call."""
    size = keys.size
    if size >= kernels.MAX_KEYS:
        raise ValueError(f"a batch of {size} keys is too large")
    bits, words, numbers = kernels.part_bits(size), _SCRATCH.of(size), np.empty(size, np.int32)
    if pool.count == 1:  # calls from Python take longer than all else with a small batch
        with overflowing():
            found, collision = kernels.number_alone(vocabularies, keys, checks, bits, words, numbers)
        return numbers, words[:found], collision

    def count(first: int, end: int) -> tuple[int, np.ndarray]:
        counts = np.zeros(1 << bits, np.int64)
        with overflowing():
            kernels.count_parts(vocabularies[first:end], keys[first:end], bits, counts)
        return first, counts

    # Of a part the keys of the first thread come first: `following` of each thread begins behind those before it.
    counted = pool.over(size, _LEAST_KEYS, count)
    counts = np.stack([each for _, each in counted], axis=1)
    behind = np.concatenate([[0], np.cumsum(counts)])
    following = {first: behind[place :: len(counted)][: 1 << bits].copy() for place, (first, _) in enumerate(counted)}
    starts = behind[:: len(counted)].copy()

    def divide(first: int, end: int) -> None:
        with overflowing():
            kernels.divide(vocabularies, keys, bits, first, end, following[first], words)

    def find_firsts(first: int, end: int) -> int:
        return kernels.find_firsts(vocabularies, keys, checks, bits, words, starts, first, end, numbers)

    pool.over(size, _LEAST_KEYS, divide)
    collisions = [at for at in pool.over(1 << bits, _LEAST_PARTS, find_firsts) if at >= 0]
    found = kernels.number(numbers, words)  # which nobody needs any more
    return numbers, words[:found], min(collisions, default=-1)


@dataclass(frozen=True)
class DistinctKeys:
    """The m different keys of a batch with n, in the order of their first occurrence.

    Attributes:
        numbers: of each of the batch's keys, int32 [n].
        vocabularies, keys, checks: uint16 [m], int64 [m], uint32 [m].
    """

    numbers: np.ndarray
    vocabularies: np.ndarray
    keys: np.ndarray
    checks: np.ndarray

    @classmethod
    def of(
        cls, table: str, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray, pool: ThreadPool = ALONE
    ) -> DistinctKeys:
        """The different ones of a table's keys: uint16 [n], int64 [n], uint32 [n].

        Raises:
            InputError: a key comes with two checks, that is, two texts have the same fingerprint.
        """
        numbers, firsts, twice = _numbered(vocabularies, keys, checks, pool)
        if twice >= 0:
            raise fingerprint_taken(table, vocabularies[twice], keys[twice])
        own = [np.empty(firsts.size, each.dtype) for each in (vocabularies, keys, checks)]

        def pick(first: int, end: int) -> None:
            kernels.pick(firsts, first, end, vocabularies, keys, checks, *own)

        pool.over(firsts.size, _LEAST_KEYS, pick)
        return cls(numbers, *own)

    @property
    def asked(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arguments of an index's lookup: vocabularies, keys, checks."""
        return self.vocabularies, self.keys, self.checks

    @property
    def counts(self) -> np.ndarray:
        """How often each comes, int64 [m]."""
        return np.bincount(self.numbers, minlength=self.keys.size)


def fingerprint_taken(table: str, vocabulary: np.uint16, key: np.int64) -> InputError:
    """The error of a key that has two checks."""
    return InputError(
        f"table {table}: two different texts of vocabulary {vocabulary} have the fingerprint {key} "
        f"({int(key) & (1 << 64) - 1:016x})"
    )
