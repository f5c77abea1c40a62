"""Reads files of edges in bounded memory into Arrow batches of two or three columns.

Text (.tsv, .txt, .csv, .gz of these), Parquet and NumPy files give the same batches: columns `head`, `relation` (unless
there are no relations) and `tail`, either UTF-8 strings or non-negative int64. Errors name the line or row, counted
from 1.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marius_oac.data.prepare.edge_file import EdgeFile, column_names
from marius_oac.data.prepare.parquet_pages import decoded, parquet_batches, parquet_errors
from marius_oac.data.prepare.text import read_text
from marius_oac.errors import InputError
from marius_oac.runtime.files.untrusted import open_regular
from marius_oac.runtime.files.untrusted_arrays import npy_header

BATCH_ROWS = 1 << 19
TEXT_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".tab": "\t", ".csv": ","}
_INT64_MAX = np.iinfo(np.int64).max


def read_edges(file: EdgeFile) -> Generator[pa.RecordBatch, None, None]:
    """Yields the edges in file order.

    Raises:
        InputError: the file is missing, empty, truncated or damaged, binary, not UTF-8 or ragged; it has the wrong
            number of columns, empty names, or ids that aren't integers in [0, 2**63).
    """
    check_readable(file.path, file.one_of_several)
    if not os.path.getsize(file.path):
        return
    suffixes = [suffix.lower() for suffix in file.path.suffixes]
    if suffixes[-1:] == [".parquet"]:
        yield from _read_parquet(file)
    elif suffixes[-1:] == [".npy"]:
        yield from _read_npy(file)
    else:
        suffix = "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])
        delimiter = file.options.delimiter or TEXT_DELIMITERS.get(suffix)
        if delimiter is None:
            known = ", ".join((*TEXT_DELIMITERS, ".gz of these", ".parquet", ".npy"))
            raise InputError(f"unknown kind of file ({known} are known); a text file's delimiter helps", file.path)
        yield from read_text(file, delimiter)


def is_text(path: Path) -> bool:
    """Whether `read_edges` takes it for a text."""
    return path.suffix.lower() not in (".parquet", ".npy")


def check_readable(path: Path, may_be_empty: bool = False) -> None:
    """Raises InputError unless `path` is a readable file, which isn't empty."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise InputError("no such file", path) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    if size == 0 and not may_be_empty:
        raise InputError("the file is empty", path)


def _read_parquet(file: EdgeFile) -> Iterator[pa.RecordBatch]:
    with parquet_errors(file.path):
        with pq.ParquetFile(file.path) as parquet:
            names, rows = list(parquet.schema_arrow.names), parquet.metadata.num_rows
        if not rows and file.one_of_several:  # an empty table may lack its columns
            return
        numbers = file.select(len(names), names)
        chosen = [names[index] for index in numbers]
        for name in chosen:
            if names.count(name) > 1:
                raise InputError(f"two columns are named {name!r}", file.path)
        file.check_rows(rows)
        file.settle("Parquet", len(names), names, numbers)
        row = 1
        for batch in parquet_batches(file.path, chosen, BATCH_ROWS):
            columns = [checked_names(batch.column(name), name, row, file.path) for name in chosen]
            yield pa.RecordBatch.from_arrays(columns, names=column_names(len(chosen)))
            row += len(batch)


def checked_names(column: pa.Array, name: str, first_row: int, path: Path) -> pa.Array:
    """A Parquet column as strings or int64.

    Args:
        name, first_row, path: the column's name, the number of the first row, from 1, and the file, for messages.

    Raises:
        InputError: a value is null, an empty name, or no id.
    """
    column = decoded(column, path)
    if column.null_count:
        row = first_row + pc.index(pc.is_null(column), True).as_py()
        raise InputError(f"row {row} has no value in column {name!r}", path)
    if pa.types.is_integer(column.type):
        return pa.array(_checked_ids(column.to_numpy(zero_copy_only=False), first_row, path))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
        lengths = pc.binary_length(column)
        if len(column) and pc.min(lengths).as_py() == 0:
            raise InputError(f"row {first_row + pc.index(lengths, 0).as_py()} has an empty {name!r}", path)
        return column
    if pa.types.is_floating(column.type):
        _refuse_floats(column.to_numpy(zero_copy_only=False), first_row, path)
    raise InputError(f"column {name!r} holds {column.type}: names (strings) or ids (integers) are needed", path)


def _checked_ids(ids: np.ndarray, first_row: int, path: Path) -> np.ndarray:
    """Ids [n] or [n, k] as int64, or InputError with the row of the first one outside [0, 2**63)."""
    wrong = (ids > _INT64_MAX) if ids.dtype == np.uint64 else (ids < 0)
    if wrong.any():
        position = tuple(np.argwhere(wrong)[0])
        which = "is beyond 2^63 - 1" if ids.dtype == np.uint64 else "is negative"
        raise InputError(f"row {first_row + int(position[0])}: id {ids[position]} {which}", path)
    return ids.astype(np.int64)


def _refuse_floats(ids: np.ndarray, first_row: int, path: Path) -> None:
    wrong = np.argwhere(~np.isfinite(ids) | (ids != np.floor(ids)))
    seen = f"; row {first_row + int(wrong[0][0])} holds {ids[tuple(wrong[0])]}" if len(wrong) else ""
    raise InputError(f"ids must be integers, not {ids.dtype} (which can't tell large ids apart){seen}", path)


def _open_npy(path: Path) -> np.ndarray:
    try:
        npy_header(path)
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except InputError as error:
        raise InputError(f"not a NumPy file of integers, or a damaged one: it {error.message}", path) from None
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"not a NumPy file of integers, or a damaged one: {error}", path) from None


def _read_npy(file: EdgeFile) -> Iterator[pa.RecordBatch]:
    ids = _open_npy(file.path)
    if not isinstance(ids, np.ndarray) or ids.ndim != 2:
        raise InputError(f"an array [edges, 2 or 3] is needed, not one of shape {np.shape(ids)}", file.path)
    file.check_rows(len(ids))
    chosen = file.select(ids.shape[1], None)
    file.settle("NumPy", ids.shape[1], None, chosen)
    if ids.dtype.kind == "f":
        _refuse_floats(ids[:BATCH_ROWS], 1, file.path)
    if ids.dtype.kind not in "iu":
        raise InputError(f"ids must be integers, not {ids.dtype}", file.path)
    rows = len(ids)
    for start in range(0, rows, BATCH_ROWS):
        # Mapped again for each batch, else all pages that were read would stay resident.
        part = _open_npy(file.path)[start : start + BATCH_ROWS]
        part = _checked_ids(np.array(part[:, chosen]), start + 1, file.path)
        columns = [pa.array(np.ascontiguousarray(part[:, index])) for index in range(part.shape[1])]
        yield pa.RecordBatch.from_arrays(columns, names=column_names(len(chosen)))
