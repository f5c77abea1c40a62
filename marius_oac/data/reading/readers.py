"""Reads files of edges in bounded memory into Arrow batches of two or three columns.

Text (.tsv, .txt, .csv, .gz of these), Parquet files and arrays (.npy, .npz, .pt) give the same batches: columns `head`,
`relation` (unless there are no relations) and `tail`, either UTF-8 strings or non-negative int64. Errors name the line
or row, counted from 1.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marius_oac.data.reading.edge_arrays import ARRAYS, BATCH_ROWS, checked_ids, read_array, refuse_floats
from marius_oac.data.reading.edge_file import EdgeFile, column_names
from marius_oac.data.reading.parquet_pages import decoded, parquet_batches, parquet_errors
from marius_oac.data.reading.text import read_text
from marius_oac.data.reading.text_form import OTHER_TEXTS, TEXT_DELIMITERS, unknown_kind
from marius_oac.errors import InputError
from marius_oac.runtime.files.untrusted import open_regular

ROWS = 1 << 14  # first ones, which tell the columns


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
    elif suffixes[-1:] and suffixes[-1] in ARRAYS:
        yield from read_array(file)
    else:
        suffix = "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])
        if file.options.delimiter is None and suffix not in (*TEXT_DELIMITERS, *OTHER_TEXTS):
            raise unknown_kind(file.path)
        yield from read_text(file, TEXT_DELIMITERS.get(suffix))


def is_text(path: Path) -> bool:
    """Whether `read_edges` takes it for a text."""
    return path.suffix.lower() not in (".parquet", *ARRAYS)


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
        numbers = file.select(len(names), names, _first_rows(file.path, names) if len(names) > 2 else ())
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


def _first_rows(path: Path, names: Sequence[str]) -> list[list[str]]:
    """The first rows as texts. Of columns of one name the last counts for all."""
    batch = next(parquet_batches(path, sorted(set(names)), ROWS), None)
    held = {} if batch is None else dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [[str(each) for each in held[name].to_pylist()] for name in names if held]
    return [list(row) for row in zip(*columns, strict=True)]


def checked_names(column: pa.Array, name: str, first_row: int, path: Path) -> pa.Array:
    """A column of a Parquet file or a table as strings or int64.

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
        return pa.array(checked_ids(column.to_numpy(zero_copy_only=False), first_row, path))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
        lengths = pc.binary_length(column)
        if len(column) and pc.min(lengths).as_py() == 0:
            raise InputError(f"row {first_row + pc.index(lengths, 0).as_py()} has an empty {name!r}", path)
        return column
    if pa.types.is_floating(column.type):
        refuse_floats(column.to_numpy(zero_copy_only=False), first_row, path)
    raise InputError(f"column {name!r} holds {column.type}: names (strings) or ids (integers) are needed", path)
