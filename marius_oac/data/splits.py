"""Splits of edges: given as files, or drawn by a seed as fractions of one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marius_oac.errors import InputError, shown

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def check_split(name: object) -> Split:
    """The split of this name. Raises InputError if there is none."""
    for split in SPLITS:
        if split == name:
            return split
    raise InputError(f"must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}, not {shown(name)}", "split")


STRATUM_EDGES = 1 << 16
"""The number of edges in a stratum. The draw for a seed depends on it, so it is not an option."""


@dataclass(frozen=True)
class GivenSplits:
    """The splits are files, read in the order train, valid, test.

    Attributes:
        ends: the number of the first edge after each of the three.
    """

    ends: tuple[int, int, int]
    over_kept: ClassVar[bool] = False  # edges are numbered as read, repetitions included

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """The index into `SPLITS` of each edge, int8 [n]; `numbers` are the edges', int64 [n]."""
        return np.searchsorted(self.ends, numbers, side="right").astype(np.int8)


@dataclass(frozen=True)
class DrawnSplits:
    """A seeded draw without replacement: exactly round(fraction * edges) edges of valid and of test.

    Every stratum of `STRATUM_EDGES` edges gets a proportional share, so that the draw can be streamed: an edge's split
    depends only on (seed, edges, fractions, edge number), and memory holds one stratum.
    """

    edges: int
    valid_fraction: float
    test_fraction: float
    seed: int

    over_kept: ClassVar[bool] = True  # edges are numbered once the repetitions that were to go are gone

    def __post_init__(self) -> None:
        check_fractions(self.valid_fraction, self.test_fraction)

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """The index into `SPLITS` of each edge, int8 [n]; `numbers` are the edges', int64 [n], ascending."""
        if not len(numbers):
            return np.empty(0, np.int8)
        first, last = int(numbers[0]) // STRATUM_EDGES, int(numbers[-1]) // STRATUM_EDGES
        strata = np.concatenate([self._stratum(number) for number in range(first, last + 1)])
        return strata[numbers - first * STRATUM_EDGES]

    def _stratum(self, number: int) -> np.ndarray:
        start = number * STRATUM_EDGES
        stop = min(start + STRATUM_EDGES, self.edges)
        # Cumulative shares are integers, so that they add up to the totals exactly. The test split's shares are of the
        # edges that validation leaves, so that no stratum, however small, has to give more edges than it has.
        valid, test = (round(fraction * self.edges) for fraction in (self.valid_fraction, self.test_fraction))
        valid_before, valid_after = (valid * edges // self.edges for edges in (start, stop))
        left = max(self.edges - valid, 1)
        test_before, test_after = (test * edges // left for edges in (start - valid_before, stop - valid_after))
        counts = valid_after - valid_before, test_after - test_before
        splits = np.zeros(stop - start, dtype=np.int8)
        splits[: counts[0]] = 1
        splits[counts[0] : counts[0] + counts[1]] = 2
        return np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, number])).permutation(splits)


def check_fractions(valid: float, test: float) -> None:
    """Raises InputError unless both lie in [0, 1) and leave edges to train on."""
    for name, fraction in (("valid_fraction", valid), ("test_fraction", test)):
        if not 0 <= fraction < 1:
            raise InputError(f"a fraction in [0, 1) is needed, not {fraction}", name)
    if valid + test >= 1:
        raise InputError(
            f"{valid} for validation and {test} for the test leave nothing to train on (their sum must stay below 1)",
            "valid_fraction, test_fraction",
        )
