"""Edges of valid and test that equal one of train, counted in bounded memory: whoever remembers train ranks them first.

Splits of all edges lie in a file, a byte each, once there is a repetition. An edge's mark goes from each edge to the
earlier one that it equals, and from there to all others that equal it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from marius_oac.data.splits import SPLITS
from marius_oac.runtime.files.npy import mapped_npy

CHUNK_EDGES = 1 << 20
_SPLIT, _IN_TRAIN = 3, 4  # bits of an edge's byte: its split, and whether an edge that equals it is in train


class CopiesOfTrain:
    """Counts them.

    Args:
        work: an existing folder for the files.
        rows: the number of edges.
    """

    def __init__(self, work: Path, rows: int) -> None:
        self._pairs, self._marks_path, self._rows = work / "repeated.bin", work / "splits.npy", rows
        self._sizes: list[int] = []
        self._marks: np.ndarray | None = None

    def add(self, pairs: np.ndarray) -> None:
        """Adds pairs of edges that are equal, int64 [n, 2], as `Repetitions.pairs` yields them, in its order."""
        if not len(pairs):
            return
        if self._marks is None:
            self._marks = mapped_npy(self._marks_path, (self._rows,), np.int8)
        with open(self._pairs, "ab") as file:
            file.write(np.ascontiguousarray(pairs).data)
        self._sizes.append(len(pairs))

    def tell(self, numbers: np.ndarray, splits: np.ndarray) -> None:
        """Says in which splits edges are: their numbers, int64 [n]; indices into `SPLITS`, int8 [n]."""
        if self._marks is not None:
            self._marks[numbers] = splits

    def count(self) -> tuple[dict[str, int], int | None]:
        """How many edges of valid and of test equal one of train, and the number of the first of them. Call it once,
        when the splits of all edges are told."""
        counts: dict[str, int] = dict.fromkeys(SPLITS[1:], 0)
        example = None
        if self._marks is None:
            return counts, example
        for pairs in self._stored():
            in_train = ((self._marks[pairs] & _SPLIT == 0) | (self._marks[pairs] & _IN_TRAIN != 0)).any(1)
            self._marks[pairs[in_train, 0]] |= _IN_TRAIN
        for pairs in self._stored(backwards=True):
            self._marks[pairs[self._marks[pairs[:, 0]] & _IN_TRAIN != 0, 1]] |= _IN_TRAIN
        for start in range(0, self._rows, CHUNK_EDGES):
            marks = self._marks[start : start + CHUNK_EDGES]
            for index in (1, 2):
                counts[SPLITS[index]] += int((marks == index | _IN_TRAIN).sum())
            found = np.flatnonzero(marks > _IN_TRAIN)
            example = start + int(found[0]) if example is None and len(found) else example
        return counts, example

    def _stored(self, backwards: bool = False) -> Iterator[np.ndarray]:
        """The pairs, as they were added, or the last ones first."""
        ends = np.cumsum(self._sizes).tolist()
        for size, end in sorted(zip(self._sizes, ends, strict=True), key=lambda each: each[1], reverse=backwards):
            yield np.fromfile(self._pairs, np.int64, 2 * size, offset=16 * (end - size)).reshape(size, 2)
