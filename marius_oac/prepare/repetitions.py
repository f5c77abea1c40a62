"""Edges that equal an earlier one: those with equal hashes are compared.

More edges than `SORTED_EDGES` are spread over files by their hashes. An edge that equals one of the same chunk stays
out of these, so that no number of copies of an edge fills one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.runtime.progress import Progress

SORTED_EDGES = 1 << 24
"""So many edges are compared at once, with some 50 bytes each; files beside hold 16 bytes of each where there are more.
"""
CHUNK_EDGES = 1 << 20
_MOST_FILES = 256
_MIX = 0x9E3779B97F4A7C15
_RECORD = np.dtype([("hash", np.uint64), ("number", np.int64)])


@dataclass(frozen=True)
class Repetitions:
    """Finds those of a file.

    Attributes:
        path, dtype: of the edges as ids, [rows, columns], in reading order.
        work: an existing folder for more files.
    """

    path: Path
    rows: int
    columns: int
    dtype: np.dtype
    work: Path

    def pairs(self) -> Iterator[np.ndarray]:
        """Yields (an earlier edge, an edge that equals it) as numbers, int64 [n, 2], ordered by neither.

        Every edge that equals an earlier one is the second of one pair. What is yielded once has no edge both as a
        first and as a second; an edge that is the first of a pair may be the second of one that is yielded later.
        """
        files = min(-(-self.rows // SORTED_EDGES), _MOST_FILES)
        if files <= 1:
            if self.rows:
                yield self._repeated(np.concatenate([_hashes(edges) for _, edges in self._chunks()]), 0)
            return
        paths = [self.work / f"hashes{number}.bin" for number in range(files)]
        with ExitStack() as stack:
            progress = stack.enter_context(Progress("hashing edges", "edges", self.rows))
            opened = [stack.enter_context(open(path, "wb")) for path in paths]
            for first, edges in self._chunks():
                hashes = _hashes(edges)
                repeated = self._repeated(hashes, first)
                yield repeated
                kept = np.ones(len(edges), np.bool_)
                kept[repeated[:, 1] - first] = False
                records = np.empty(int(kept.sum()), _RECORD)
                records["hash"], records["number"] = hashes[kept], first + np.flatnonzero(kept)
                place = (records["hash"] >> np.uint64(32)) % np.uint64(files)
                for number, file in enumerate(opened):
                    file.write(records[place == number].data)
                progress.add(len(edges))
        with Progress("comparing edges", "files", len(paths)) as progress:
            for path in paths:
                found = np.fromfile(path, _RECORD)
                path.unlink()
                yield self._repeated(np.ascontiguousarray(found["hash"]), np.ascontiguousarray(found["number"]))
                progress.add(1)

    def _repeated(self, hashes: np.ndarray, numbers: np.ndarray | int) -> np.ndarray:
        """Of edges with these hashes, uint64 [n], the pairs of the first that is equal and each later one. `numbers`,
        ascending, int64 [n], are the edges'; an int: that of the first, from which they count."""
        ordered = np.sort(hashes)
        twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        del ordered
        if not twice.size:
            return np.empty((0, 2), np.int64)
        place = np.searchsorted(twice, hashes)
        place[place == len(twice)] = 0
        some = np.flatnonzero(twice[place] == hashes)
        those = numbers + some if isinstance(numbers, int) else numbers[some]
        edges = np.memmap(self.path, self.dtype, "r", shape=(self.rows, self.columns))[those]
        order = np.lexsort(edges.T)  # which leaves the order of equal ones
        edges, those = edges[order], those[order]
        new = np.append(True, (edges[1:] != edges[:-1]).any(1))
        begins = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
        return np.stack([those[begins[~new]], those[~new]], axis=1)

    def _chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        with open(self.path, "rb") as file:
            for first in range(0, self.rows, CHUNK_EDGES):
                size = min(CHUNK_EDGES, self.rows - first)
                yield first, np.fromfile(file, self.dtype, size * self.columns).reshape(size, self.columns)


def _hashes(edges: np.ndarray) -> np.ndarray:
    """uint64 [n] for edges [n, columns]: equal where these are, and hardly ever else."""
    hashes = np.zeros(len(edges), np.uint64)
    for column in edges.T:
        hashes += column.astype(np.uint64)
        hashes *= np.uint64(_MIX)
        hashes ^= hashes >> np.uint64(29)
    return hashes
