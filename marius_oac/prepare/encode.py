"""Maps names to ids in bounded memory, while the files are read.

Each block of edges gets a dictionary of its own, beside reading. The dictionaries of some blocks become that of a
*run*, by whose numbers its edges are written to a file. Once all names are known, `numbering` gives each its id:
strings by bytes, integers by value (so ids that are already 0..n-1 don't change). Ids don't depend on the order of
lines, the number of threads or the limits of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from marius_oac.data.reading.database import Database
from marius_oac.errors import InputError
from marius_oac.prepare.numbering import Numbering, coded
from marius_oac.runtime.closing import Closable
from marius_oac.runtime.progress import Progress
from marius_oac.types import present

BLOCK_ROWS = 1 << 19
BLOCK_BYTES = 64 << 20
"""A block of edges is encoded once it has so many, or so many bytes of names."""
RUN_BYTES = 256 << 20
"""Of the dictionaries and numbers of blocks that become a run. A table of hashes, of three times that, is added."""
THREADS = 2  # that encode; each has a block of its own
CHUNK_EDGES = 1 << 20


@dataclass(frozen=True)
class _Coded:
    """A block of edges by numbers: `codes`, int32 [n, columns], are places in `names`, by table."""

    codes: np.ndarray
    names: dict[str, pa.Array]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + sum(names.nbytes for names in self.names.values())


class Encoder(Closable):
    """Assigns ids to the names in edges. Use it as a context manager.

    Args:
        work: an existing folder for files of numbers and for the database of names beyond the memory.

    Raises:
        InputError: one file has names and another integer ids, or one has relations and another none.
        duckdb.Error: the disk is full (see `database.query_errors`), or the database failed.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._schema: pa.Schema | None = None
        self._database = Database(work)
        self._numberings: dict[str, Numbering] = {}
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._waiting: deque[Future[_Coded]] = deque()
        self._blocks: list[_Coded] = []
        self._runs: list[int] = []  # their edges
        self.rows = 0  # edges added so far
        with ExitStack() as stack:
            stack.callback(self._database.close)
            self._threads = stack.enter_context(ThreadPoolExecutor(THREADS, "encode"))
            self._file = stack.enter_context(open(work / "codes.bin", "wb"))
            self._stack = stack.pop_all()

    @property
    def columns(self) -> list[str]:
        """["head", "relation", "tail"] or ["head", "tail"], known after the first batch."""
        return present(self._schema).names

    @property
    def tables(self) -> list[str]:
        """["nodes", "relations"], or ["nodes"] where edges have no relation."""
        return list(self._numberings)

    def add(self, batch: pa.RecordBatch, path: Path) -> None:
        """Appends edges, columns as `readers.read_edges` gives them. Errors name `path`."""
        if self._schema is None:
            self._begin(batch.schema, path)
        elif batch.schema.names != self.columns:
            raise InputError(f"columns {batch.schema.names} here, {self.columns} in the file before", path)
        elif batch.schema != self._schema:
            raise InputError("names here and integer ids in the file before (or the reverse)", path)
        self._pending.append(batch)
        self.rows += len(batch)
        self._pending_rows, self._pending_bytes = self._pending_rows + len(batch), self._pending_bytes + batch.nbytes
        if self._pending_rows >= BLOCK_ROWS or self._pending_bytes >= BLOCK_BYTES:
            self._encode()

    def _begin(self, schema: pa.Schema, path: Path) -> None:
        if schema.field("head").type != schema.field("tail").type:
            raise InputError("heads and tails must both be names or both be integer ids", path)
        self._schema = schema
        for table, column in (("nodes", "head"), ("relations", "relation")):
            if column in schema.names:
                self._numberings[table] = Numbering(table, self._work, self._database)

    def _encode(self) -> None:
        """Has the pending edges encoded; takes blocks that are, so that no more wait than there are threads."""
        self._waiting.append(self._threads.submit(_coded_block, self._pending, self.columns))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        while len(self._waiting) > THREADS:
            self._take(self._waiting.popleft().result())

    def _take(self, block: _Coded) -> None:
        self._blocks.append(block)
        if sum(each.nbytes for each in self._blocks) >= RUN_BYTES:
            self._end_run()

    def _end_run(self) -> None:
        """Makes one dictionary of those of the blocks, and writes their edges by its numbers."""
        places = {}
        for table, numbering in self._numberings.items():
            pieces = [block.names[table] for block in self._blocks]
            numbers, names = coded(pieces)
            places[table] = np.split(numbers, np.cumsum([len(piece) for piece in pieces])[:-1])
            numbering.add(names)
        for number, block in enumerate(self._blocks):
            self._file.write(_renumbered(block.codes, {table: each[number] for table, each in places.items()}).data)
        self._runs.append(sum(len(block.codes) for block in self._blocks))
        self._blocks = []

    def resolve(self, progress: Progress) -> None:
        """Assigns an id to every name, in three steps. Call it once, after the last `add` and before other methods."""
        if self._pending:
            self._encode()
        while self._waiting:
            self._take(self._waiting.popleft().result())
        if self._blocks:
            self._end_run()
        self._file.flush()
        progress.add(1)
        for table in ("nodes", "relations"):
            if table in self._numberings:
                self._numberings[table].resolve()
            progress.add(1)

    def count(self, table: str) -> int:
        """The number of names of table "nodes" or "relations"."""
        return self._numberings[table].count

    def edges(self) -> Iterator[np.ndarray]:
        """Yields the edges as ids in reading order, int32 or int64 [n, 3 or 2]. Can be called once."""
        columns = len(self.columns)
        with open(self._work / "codes.bin", "rb") as file:
            for number, rows in enumerate(self._runs):
                ids = {table: each.ids(number) for table, each in self._numberings.items()}
                for first in range(0, rows, CHUNK_EDGES):
                    size = min(CHUNK_EDGES, rows - first)
                    yield _renumbered(np.fromfile(file, np.int32, size * columns).reshape(size, columns), ids)
        (self._work / "codes.bin").unlink()

    def names(self, table: str) -> Iterator[pa.Array]:
        """Yields the names of table "nodes" or "relations" in the order of their ids, as strings."""
        return self._numberings[table].names()

    def name(self, table: str, number: int) -> str:
        """The name of one id."""
        return self._numberings[table].name(number)

    def close(self) -> None:
        """Ends the threads and the database."""
        for each in self._waiting:
            each.cancel()
        self._stack.close()


def _coded_block(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> _Coded:
    ends, nodes = coded([batch.column(name) for name in (columns[0], columns[-1]) for batch in batches])
    rows = len(ends) // 2
    codes = np.empty((rows, len(columns)), np.int32)
    codes[:, 0], codes[:, -1] = ends[:rows], ends[rows:]
    if len(columns) == 2:
        return _Coded(codes, {"nodes": nodes})
    codes[:, 1], relations = coded([batch.column(columns[1]) for batch in batches])
    return _Coded(codes, {"nodes": nodes, "relations": relations})


def _renumbered(codes: np.ndarray, places: dict[str, np.ndarray]) -> np.ndarray:
    """Edges [n, columns] with the number at `places[table][code]` instead of each code, of the type of these."""
    edges = np.empty(codes.shape, np.result_type(*places.values()))
    edges[:, 0], edges[:, -1] = places["nodes"][codes[:, 0]], places["nodes"][codes[:, -1]]
    if "relations" in places:
        edges[:, 1] = places["relations"][codes[:, 1]]
    return edges
