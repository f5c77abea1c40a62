"""Edges that equal an earlier one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from marius_oac.data.prepare.database import Database

SORTED_EDGES = 1 << 24
"""So many edges at most are compared in memory, with 16 bytes each; DuckDB compares more."""
CHUNK_EDGES = 1 << 20


@dataclass(frozen=True)
class Repetitions:
    """Finds those of a file. Use it once.

    Attributes:
        path, rows, columns, dtype: of the edges, in reading order, ids of all names: [rows, columns].
        counts: the number of ids of nodes, and of relations if there are some.
    """

    path: Path
    rows: int
    columns: Sequence[str]
    dtype: np.dtype
    counts: Sequence[int]
    database: Database

    def count(self) -> int:
        """The number of edges that equal an earlier one."""
        if self._fits:
            keys = np.sort(self._keys())
            return int((keys[1:] == keys[:-1]).sum())
        self._hand_over()
        groups = f"SELECT count(*) AS size FROM edges GROUP BY {', '.join(self.columns)}"
        return self.rows - self.database.execute(f"SELECT count(*) FROM ({groups})")[0][0]

    def numbers(self) -> Iterator[np.ndarray]:
        """Yields their numbers, in reading order: int64 [n], ascending."""
        if self._fits:
            keys = self._keys()
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            yield np.sort(order[1:][keys[1:] == keys[:-1]])
            return
        self._hand_over()
        key = ", ".join(self.columns)
        groups = f"SELECT {key}, min(i) AS first FROM edges GROUP BY {key} HAVING count(*) > 1"
        for batch in self.database.stream(
            f"SELECT e.i FROM edges AS e JOIN ({groups}) AS g USING ({key}) WHERE e.i > g.first ORDER BY e.i"
        ):
            yield np.asarray(batch.column(0))

    @property
    def _limits(self) -> list[int]:
        """The number of ids in each column."""
        return [self.counts[0], *self.counts[1:], self.counts[0]]

    @property
    def _fits(self) -> bool:
        return self.rows <= SORTED_EDGES and math.prod(self._limits) < 1 << 63

    def _keys(self) -> np.ndarray:
        """A number for each edge, int64 [rows], which is equal exactly where edges are."""
        keys = np.empty(self.rows, np.int64)
        for first, edges in self._chunks():
            into = keys[first : first + len(edges)]
            into[:] = edges[:, 0]
            for column, limit in enumerate(self._limits[1:], 1):
                into *= limit
                into += edges[:, column]
        return keys

    def _hand_over(self) -> None:
        schema = pa.schema([(name, pa.int64()) for name in ("i", *self.columns)])
        batches = (
            pa.record_batch([pa.array(np.arange(first, first + len(edges))),
                             *(pa.array(column.astype(np.int64)) for column in edges.T)], schema=schema)
            for first, edges in self._chunks()
        )  # fmt: skip
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        self.database.run("CREATE TABLE edges AS SELECT * FROM incoming", reader)

    def _chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        with open(self.path, "rb") as file:
            for first in range(0, self.rows, CHUNK_EDGES):
                size = min(CHUNK_EDGES, self.rows - first)
                yield first, np.fromfile(file, self.dtype, size * len(self.columns)).reshape(size, -1)
