"""Maps names to ids in bounded memory: DuckDB sorts, joins and spills to disk.

Ids follow the order of the names: strings by bytes, integers by value (so ids that are already 0..n-1 don't change).
They don't depend on the order of lines, the number of threads or the memory limit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from marius_oac.errors import InputError
from marius_oac.runtime.closing import Closable
from marius_oac.runtime.progress import Progress
from marius_oac.types import present

if TYPE_CHECKING:
    import duckdb


@contextmanager
def query_errors(where: object, hint: str) -> Iterator[None]:
    """Within the block, errors of a full or failing disk become an InputError that names `where` and ends in `hint`."""
    import duckdb  # which takes a sixth of a second, and is used by few runs

    try:
        yield
    except (OSError, duckdb.Error, pa.ArrowException) as error:
        if disk_full(error):
            raise InputError(f"the disk is full; {hint}", where) from error
        if _of_the_disk(error):
            raise InputError(f"can't be written: {str(error).splitlines()[0]}; {hint}", where) from error
        raise


def _of_the_disk(error: BaseException) -> bool:
    """Whether DuckDB says that one of its files can't be read, written or flushed. Our queries raise
    TransactionException for no other reason."""
    import duckdb

    return isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.TransactionException)


def disk_full(error: BaseException) -> bool:
    """Whether this error, ours or a library's, means that there is no space left."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error).lower()
    return "no space left" in text or "max_temp_directory_size" in text


MEMORY_LIMIT_BYTES = 2 << 30  # 2 GiB for DuckDB, which spills the rest to the work folder
MAX_THREADS = 8  # each thread needs its own buffers within the limit
STREAM_ROWS = 1 << 19
INSERT_ROWS = 1 << 20


class Encoder(Closable):
    """Assigns ids to the names in edges, and finds repeated edges. Use it as a context manager.

    Args:
        work: an existing folder for the database and its spilled data.

    Raises:
        InputError: one file has names and another integer ids, or one has relations and another none.
        duckdb.Error: the disk is full (see `queries.query_errors`), or the database failed.
    """

    def __init__(self, work: Path) -> None:
        self._connection = connect(work)
        self._pending: list[pa.RecordBatch] = []
        self._schema: pa.Schema | None = None
        self._inserted = 0
        self.rows = 0  # edges added so far

    @property
    def columns(self) -> list[str]:
        """["head", "relation", "tail"] or ["head", "tail"], known after the first batch."""
        return present(self._schema).names

    def add(self, batch: pa.RecordBatch, path: Path) -> None:
        """Appends edges, columns as `readers.read_edges` gives them. Errors name `path`."""
        if self._schema is None:
            self._schema = batch.schema
            kinds = ", ".join(f'"{field.name}" {_sql_type(field.type)}' for field in batch.schema)
            self._connection.execute(f"CREATE TABLE raw (i BIGINT, {kinds})")
            if _sql_type(batch.schema.field("head").type) != _sql_type(batch.schema.field("tail").type):
                raise InputError("heads and tails must both be names or both be integer ids", path)
        elif batch.schema.names != self._schema.names:
            raise InputError(f"columns {batch.schema.names} here, {self._schema.names} in the file before", path)
        elif batch.schema != self._schema:
            raise InputError("names here and integer ids in the file before (or the reverse)", path)
        self._pending.append(batch)
        self.rows += len(batch)
        if self.rows - self._inserted >= INSERT_ROWS:
            self._insert()

    def _insert(self) -> None:
        if not self._pending:
            return
        edges = pa.Table.from_batches(self._pending)
        numbers = pa.array(np.arange(self._inserted, self.rows))
        self._connection.register("incoming", edges.add_column(0, "i", numbers))
        self._connection.execute("INSERT INTO raw SELECT * FROM incoming")
        self._connection.unregister("incoming")
        self._inserted, self._pending = self.rows, []

    def resolve(self, progress: Progress) -> None:
        """Assigns an id to every name, in three steps. Call it once, after the last `add` and before other methods."""
        self._insert()
        execute = self._connection.execute
        execute(_numbering("nodes", "SELECT head AS name FROM raw UNION ALL SELECT tail FROM raw"))
        progress.add(1)
        joins = "JOIN nodes AS h ON h.name = raw.head JOIN nodes AS t ON t.name = raw.tail"
        ids = "h.id AS head, t.id AS tail"
        if "relation" in self.columns:
            execute(_numbering("relations", "SELECT relation AS name FROM raw"))
            joins += " JOIN relations AS r ON r.name = raw.relation"
            ids = "h.id AS head, r.id AS relation, t.id AS tail"
        progress.add(1)
        execute(f"CREATE TABLE edges AS SELECT i, {ids} FROM raw {joins}")
        execute("DROP TABLE raw")
        progress.add(1)

    def count(self, table: str) -> int:
        """The number of rows of table "nodes" or "relations"."""
        return self._connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]

    def edges(self) -> Iterator[np.ndarray]:
        """Yields the edges as ids in reading order, int64 [n, 3 or 2]."""
        for batch in self._stream(f"SELECT {', '.join(self.columns)} FROM edges ORDER BY i"):
            yield np.stack([np.asarray(batch.column(name)) for name in self.columns], axis=1)

    def names(self, table: str) -> Iterator[pa.Array]:
        """Yields the names of table "nodes" or "relations" in the order of their ids, as strings."""
        for batch in self._stream(f"SELECT name::VARCHAR AS name FROM {table} ORDER BY id"):
            yield batch.column("name")

    def name(self, table: str, number: int) -> str:
        """The name of one id."""
        query = f"SELECT name::VARCHAR FROM {table} WHERE id = {number}"
        return self._connection.execute(query).fetchall()[0][0]

    def repetitions(self) -> Iterator[np.ndarray]:
        """Yields the numbers, in reading order, of the edges that equal an earlier one: int64 [n], ascending."""
        key = ", ".join(self.columns)
        groups = f"SELECT {key}, min(i) AS first FROM edges GROUP BY {key} HAVING count(*) > 1"
        for batch in self._stream(f"SELECT e.i FROM edges AS e JOIN ({groups}) AS g USING ({key}) "
                                  "WHERE e.i > g.first ORDER BY e.i"):  # fmt: skip
            yield np.asarray(batch.column(0))

    def _stream(self, query: str) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            yield from cursor.sql(query).to_arrow_reader(STREAM_ROWS)

    def close(self) -> None:
        self._connection.close()


def connect(
    work: Path, memory_limit: int = MEMORY_LIMIT_BYTES, most_threads: int = MAX_THREADS
) -> duckdb.DuckDBPyConnection:
    """Opens a database in the existing folder `work`, where it spills data beyond `memory_limit` bytes."""
    import duckdb  # see `query_errors`

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_limit >> 20}MiB",
        "temp_directory": str(work / "spill"),
        "threads": min(most_threads, os.cpu_count() or 1),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(str(work / "work.duckdb"), config=settings)
    connection.execute("SET enable_progress_bar = false")  # it would write to our output
    return connection


def _sql_type(kind: pa.DataType) -> str:
    return "BIGINT" if pa.types.is_integer(kind) else "VARCHAR"


def _numbering(table: str, names: str) -> str:
    """SQL that makes a table of the distinct names, whose ids follow their order."""
    distinct = f"SELECT DISTINCT name FROM ({names})"
    return f"CREATE TABLE {table} AS SELECT name, row_number() OVER (ORDER BY name) - 1 AS id FROM ({distinct})"
