"""The different keys of a batch: a batch looks up, and inserts, each of them once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_oac.errors import InputError
from marius_oac.kernels.cpu import distinct as kernels
from marius_oac.runtime.thread_pool import ALONE, ThreadPool

_LEAST_PARTS = 4  # for a thread


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
    size = keys.size
    if size >= kernels.MAX_KEYS:
        raise ValueError(f"a batch of {size} keys is too large")
    bits = kernels.part_bits(size)
    words, starts = np.empty(size, np.int64), np.empty((1 << bits) + 1, np.int64)
    numbers = np.empty(size, np.int32)
    with np.errstate(over="ignore"):
        kernels.divide(vocabularies, keys, bits, words, starts)

    def part(first: int, end: int) -> int:
        return kernels.find_firsts(vocabularies, keys, checks, bits, words, starts, first, end, numbers)

    collisions = [at for at in pool.over(1 << bits, _LEAST_PARTS, part) if at >= 0]
    count = kernels.number(numbers, words)  # which nobody needs any more
    return numbers, words[:count].copy(), min(collisions, default=-1)


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
        numbers, firsts, twice = number_distinct(vocabularies, keys, checks, pool)
        if twice >= 0:
            raise fingerprint_taken(table, vocabularies[twice], keys[twice])
        return cls(numbers, vocabularies[firsts], keys[firsts], checks[firsts])

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
