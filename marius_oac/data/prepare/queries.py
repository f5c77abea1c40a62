"""A full disk, as DuckDB and Arrow tell of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from marius_oac.errors import InputError

_OF_THE_DISK = (duckdb.IOException, duckdb.FatalException, duckdb.TransactionException)
"""What DuckDB raises where a file of its own can't be read, written or flushed; nothing else that is asked of it here
is a transaction."""


@contextmanager
def query_errors(where: object, hint: str) -> Iterator[None]:
    """Within the block that a disk is full, or fails under DuckDB, becomes an InputError that names `where` and gives
    the `hint`."""
    try:
        yield
    except (OSError, duckdb.Error, pa.ArrowException) as error:
        if disk_full(error):
            raise InputError(f"the disk is full; {hint}", where) from error
        if isinstance(error, _OF_THE_DISK):
            raise InputError(f"can't be written: {str(error).splitlines()[0]}; {hint}", where) from error
        raise


def disk_full(error: BaseException) -> bool:
    """Whether this error, from us or a library, says that there is no space left."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error).lower()
    return "no space left" in text or "max_temp_directory_size" in text
