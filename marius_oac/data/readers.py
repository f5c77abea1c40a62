"""Files of edges, read in bounded memory into Arrow batches of two or three columns.

Text (.tsv, .txt, .csv, .gz of these), Parquet and NumPy files all come out the same way: columns `head`, `relation`
(unless there are no relations) and `tail`, either UTF-8 strings or non-negative int64, a batch at a time. What is wrong
with a file is said with its line or row number, counted from 1.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marius_oac.data.edge_columns import column_names, roles
from marius_oac.data.parquet_pages import decoded, parquet_batches
from marius_oac.data.text import read_text
from marius_oac.errors import InputError
from marius_oac.untrusted import open_regular
from marius_oac.untrusted_npy import npy_header

BATCH_ROWS = 1 << 19
TEXT_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".tab": "\t", ".csv": ","}
_INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How edges stand in a file.

    Attributes:
        columns: names or numbers (from 0) of the head, relation and tail columns, or of source and destination.
            Default: columns of such names where the file has names, else the file's two or three columns.
        relations: False ignores the relation column.
        header: whether a text file's first line holds column names; None: as it looks, which is said where it does.
        delimiter: one character; default by suffix (tab for .tsv, .txt and .tab, comma for .csv).
        comment: lines of a text file that begin with this are skipped and counted; "" for none.

    Raises:
        InputError: two or three columns are needed; a delimiter or comment that isn't one ASCII character.
    """

    columns: tuple[str, ...] | None = None
    relations: bool = True
    header: bool | None = None
    delimiter: str | None = None
    comment: str = "#"

    def __post_init__(self) -> None:
        if self.columns is not None and len(self.columns) not in (2, 3):
            raise InputError(
                f"two (source, destination) or three (head, relation, tail) are needed, not {len(self.columns)}",
                "columns",
            )
        if self.columns is not None and not all(self.columns):
            raise InputError("the name of a column is empty", "columns")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise InputError(f"the same column is named twice: {', '.join(self.columns)}", "columns")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '\r\n"\0'):
            raise InputError(f"one character is needed, not {self.delimiter!r}", "delimiter")
        if self.delimiter is not None and not self.delimiter.isascii():
            raise InputError(f"an ASCII character is needed, not {self.delimiter!r}", "delimiter")
        if self.comment and (len(self.comment) != 1 or not self.comment.isascii() or self.comment in "\r\n\0"):
            raise InputError(f"one ASCII character or nothing is needed, not {self.comment!r}", "comment")


@dataclass
class EdgeFile:
    """One file of edges; `batches` reads it once, `comment_lines` is then the number of lines it skipped.

    `holds` is what an error calls the rows: other files of two or three columns of names are read the same way.
    """

    path: Path
    options: ReadOptions
    comment_lines: int = 0
    holds: str = "edges"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the edges in file order.

        Raises:
            InputError: the file is missing, empty, truncated or damaged, binary, not UTF-8, ragged, of the wrong
                column count, has empty names, or ids that aren't integers in [0, 2**63).
        """
        check_readable(self.path)
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        if suffixes[-1:] == [".parquet"]:
            yield from _read_parquet(self)
        elif suffixes[-1:] == [".npy"]:
            yield from _read_npy(self)
        else:
            suffix = "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])
            delimiter = self.options.delimiter or TEXT_DELIMITERS.get(suffix)
            if delimiter is None:
                known = ", ".join((*TEXT_DELIMITERS, ".gz of these", ".parquet", ".npy"))
                raise InputError(f"unknown kind of file ({known} are known); a text file's delimiter helps", self.path)
            yield from read_text(self, delimiter)

    def select(self, width: int, names: Sequence[str] | None) -> list[int]:
        """The numbers of the columns to read, in the order head, relation (where used), tail.

        Args:
            width: the file's columns.
            names: their names, where the file has them.

        Raises:
            InputError: a column that isn't there, or no way to tell which columns are meant.
        """
        wanted = self.options.columns
        if wanted is None:
            for default in (("head", "relation", "tail"), ("source", "destination")):
                if names and set(default) <= set(names):
                    wanted = default
                    break
        said = roles(names) if names and wanted is None else None
        if wanted is not None:
            found = [self._find(column, width, names) for column in wanted]
        elif said is not None:
            found = said
        elif width in (2, 3):
            found = list(range(width))
        else:
            between = (
                "; say what is between them with --delimiter, such as ' '" if self.path.suffix != ".parquet" else ""
            )
            how = between if width < 2 else "; say which with --columns"
            raise InputError(f"2 or 3 columns are expected, {width} found{how}", self.path)
        if len(set(found)) != len(found):
            raise InputError(f"the same column is named twice: {', '.join(wanted or ())}", self.path)
        return found if self.options.relations else [found[0], found[-1]]

    def _find(self, column: str, width: int, names: Sequence[str] | None) -> int:
        if names and column in names:
            return names.index(column)
        if column.isdecimal():
            if int(column) >= width:
                raise InputError(f"there is no column {column}: {width} columns, counted from 0", self.path)
            return int(column)
        if not names:
            raise InputError(f"column {column!r} is a name, but the file has none (no header)", self.path)
        near = difflib.get_close_matches(column, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(map(repr, names[:10]))}"
        raise InputError(f"there is no column {column!r}{hint}", self.path)


def check_readable(path: Path) -> None:
    """Raises InputError unless `path` is a readable file that isn't empty."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise InputError("no such file", path) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    if size == 0:
        raise InputError("the file is empty", path)


def _read_parquet(file: EdgeFile) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(file.path) as parquet:
            names, rows = list(parquet.schema_arrow.names), parquet.metadata.num_rows
        chosen = [names[index] for index in file.select(len(names), names)]
        for name in chosen:
            if names.count(name) > 1:
                raise InputError(f"two columns are named {name!r}", file.path)
        if rows == 0:
            raise InputError(f"the file has no {file.holds}", file.path)
        row = 1
        for batch in parquet_batches(file.path, chosen, BATCH_ROWS):
            columns = [checked_names(batch.column(name), name, row, file.path) for name in chosen]
            yield pa.RecordBatch.from_arrays(columns, names=column_names(len(chosen)))
            row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"not a Parquet file, or a damaged one: {error}", file.path) from None


def checked_names(column: pa.Array, name: str, first_row: int, path: Path) -> pa.Array:
    """A Parquet column as strings or int64; refuses nulls, empty names and what isn't an id."""
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
    if len(ids) == 0:
        raise InputError(f"the file has no {file.holds}", file.path)
    chosen = file.select(ids.shape[1], None)
    if ids.dtype.kind == "f":
        _refuse_floats(ids[:BATCH_ROWS], 1, file.path)
    if ids.dtype.kind not in "iu":
        raise InputError(f"ids must be integers, not {ids.dtype}", file.path)
    rows = len(ids)
    for start in range(0, rows, BATCH_ROWS):
        # Mapped anew each time: pages that were read would otherwise stay in this process's memory for good.
        part = _open_npy(file.path)[start : start + BATCH_ROWS]
        part = _checked_ids(np.array(part[:, chosen]), start + 1, file.path)
        columns = [pa.array(np.ascontiguousarray(part[:, index])) for index in range(part.shape[1])]
        yield pa.RecordBatch.from_arrays(columns, names=column_names(len(chosen)))
