"""Looks up many names of nodes at once in bounded memory: DuckDB joins them with the graph's names, and spills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.names import name_batches
from marius_oac.data.reading.database import STREAM_ROWS, connect, query_errors
from marius_oac.runtime.closing import Closable

_ASKED = pa.schema([("i", pa.int64()), ("name", pa.string())])
_KNOWN = pa.schema([("name", pa.string()), ("id", pa.int64())])


class NodeLookup(Closable):
    """Maps names to ids. Use it as a context manager.

    Args:
        work: an existing folder for the database and its spilled data, used by nothing else.

    Raises:
        InputError: by any method, if the disk is full.
    """

    def __init__(self, graph: Graph, work: Path) -> None:
        self._graph, self._work = graph, work
        self._connection = connect(work)
        self._connection.execute("CREATE TABLE asked (i BIGINT, name VARCHAR)")
        self.rows = 0  # names added so far

    def add(self, names: pa.Array) -> None:
        """Appends names, strings without nulls. Names may repeat."""
        numbers = pa.array(np.arange(self.rows, self.rows + len(names)))
        with query_errors(self._work, "nothing was kept"):
            self._connection.register("incoming", pa.table([numbers, names], schema=_ASKED))
            self._connection.execute("INSERT INTO asked SELECT * FROM incoming")
            self._connection.unregister("incoming")
        self.rows += len(names)

    def find(self, ids: np.ndarray) -> None:
        """Writes the id of each name, in the order of addition, to `ids`, int64 [rows]; -1: unknown."""
        ids[:] = -1
        with query_errors(self._work, "nothing was kept"):
            known = pa.RecordBatchReader.from_batches(_KNOWN, self._known())
            self._connection.register("known", known)
            found = self._connection.sql("SELECT i, id FROM asked JOIN known USING (name)")
            for batch in found.to_arrow_reader(STREAM_ROWS):
                ids[np.asarray(batch.column(0))] = np.asarray(batch.column(1))
            self._connection.unregister("known")

    def _known(self) -> Iterator[pa.RecordBatch]:
        start = 0
        for names in name_batches(self._graph.path / "nodes.parquet", STREAM_ROWS):
            ids = pa.array(np.arange(start, start + len(names)))
            yield pa.record_batch([names.cast(pa.string()), ids], schema=_KNOWN)
            start += len(names)

    def close(self) -> None:
        self._connection.close()
