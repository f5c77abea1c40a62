"""DuckDB, which joins, sorts and counts what is larger than the memory, and spills to disk."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from marius_oac.errors import InputError
from marius_oac.runtime.closing import Closable

if TYPE_CHECKING:
    import duckdb


MEMORY_LIMIT_BYTES = 2 << 30  # 2 GiB for DuckDB, which spills the rest to the work folder
MAX_THREADS = 8  # each thread needs its own buffers within the limit
STREAM_ROWS = 1 << 19


@contextmanager
def query_errors(where: object, hint: str) -> Iterator[None]:
    """Within the block, errors of a full or failing disk become an InputError that names `where` and ends in `hint`."""
    try:
        yield
    except _of_libraries() as error:
        if disk_full(error):
            raise InputError(f"the disk is full; {hint}", where) from error
        if _of_the_disk(error):
            what = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise InputError(f"can't be written: {what}; {hint}", where) from error
        raise


def _of_the_disk(error: BaseException) -> bool:
    """Whether a file can't be written, or DuckDB says that one of its files can't be read, written or flushed. Our
    queries raise TransactionException for no other reason."""
    if isinstance(error, OSError):
        return error.errno in (errno.EFBIG, errno.EIO)
    if "duckdb" not in sys.modules:
        return False
    import duckdb

    return isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.TransactionException)


def disk_full(error: BaseException) -> bool:
    """Whether this error, ours or a library's, means that there is no space left."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error).lower()
    return "no space left" in text or "max_temp_directory_size" in text


def _of_libraries() -> tuple[type[Exception], ...]:
    """The errors that may tell of the disk; DuckDB's only where something has imported it."""
    if "duckdb" not in sys.modules:
        return OSError, pa.ArrowException
    import duckdb

    return OSError, pa.ArrowException, duckdb.Error


class Database(Closable):
    """A connection that is opened when it is first used.

    Args:
        work: an existing folder for the database and its spilled data.
    """

    def __init__(self, work: Path) -> None:
        self._work = work

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return connect(self._work)

    def execute(self, query: str) -> list[tuple]:
        """The rows of a query's result."""
        return self._connection.execute(query).fetchall()

    def run(self, query: str, incoming: pa.Table | pa.RecordBatchReader) -> None:
        """Runs a query that reads `incoming`."""
        self._connection.register("incoming", incoming)
        self._connection.execute(query)
        self._connection.unregister("incoming")

    def stream(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yields a query's result."""
        with self._connection.cursor() as cursor:
            yield from cursor.sql(query).to_arrow_reader(STREAM_ROWS)

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if "_connection" in self.__dict__:
            self._connection.close()


def connect(work: Path) -> duckdb.DuckDBPyConnection:
    """Opens a database in the existing folder `work`, where it spills data beyond `MEMORY_LIMIT_BYTES`."""
    import duckdb  # which takes a sixth of a second, and few runs need it

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{MEMORY_LIMIT_BYTES >> 20}MiB",
        "temp_directory": str(work / "spill"),
        "threads": min(MAX_THREADS, os.cpu_count() or 1),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(str(work / "work.duckdb"), config=settings)
    # A bar would write to our output. In Jupyter without ipywidgets there is none, and to set it is an error.
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() != [(False,)]:
        connection.execute("SET enable_progress_bar = false")
    return connection
