"""Recognises a full disk in the errors of DuckDB and Arrow."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from marius_oac.errors import InputError

_OF_THE_DISK = (duckdb.IOException, duckdb.FatalException, duckdb.TransactionException)
"""Raised by DuckDB if one of its files can't be read, written or flushed. Our queries raise TransactionException for no
other reason."""


@contextmanager
def query_errors(where: object, hint: str) -> Iterator[None]:
    """Within the block, errors of a full or failing disk become an InputError that names `where` and ends in `hint`."""
    try:
        yield
    except (OSError, duckdb.Error, pa.ArrowException) as error:
        if disk_full(error):
            raise InputError(f"the disk is full; {hint}", where) from error
        if isinstance(error, _OF_THE_DISK):
            raise InputError(f"can't be written: {str(error).splitlines()[0]}; {hint}", where) from error
        raise


def disk_full(error: BaseException) -> bool:
    """Whether this error, ours or a library's, means that there is no space left."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error).lower()
    return "no space left" in text or "max_temp_directory_size" in text
