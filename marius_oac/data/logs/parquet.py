"""Click logs in Parquet. The schema's columns are decoded as row groups are read."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.columns import check_key
from marius_oac.data.logs.lines import MOST_BLOCK_BYTES
from marius_oac.data.logs.pieces import PIECE_BYTES, Pieces
from marius_oac.data.logs.schema import (
    Parsed,
    RawBlock,
    check_columns,
    check_label,
    check_number,
    is_list,
    is_text,
    plain,
)
from marius_oac.data.reading.parquet_pages import Chunk, column_chunks, parquet_errors, reading_plan
from marius_oac.errors import InputError

BATCH_ROWS = 1 << 16
Range: TypeAlias = tuple[int, int]
"""Rows [first, end) of a file."""
_END_BYTES = 8  # at the end of the file: the footer's length, and "PAR1"


class ParquetLog:
    """A Parquet file. `names` are its columns."""

    format = "parquet"

    def __init__(self, path: Path, config: LogConfig, with_labels: bool):
        self.path = path
        with parquet_errors(path), pq.ParquetFile(path) as parquet:
            schema = parquet.schema_arrow
            self._groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
        self.names = list(schema.names)
        self._wanted = check_columns(self.names, config, with_labels, path)
        if with_labels:
            check_label(schema.field(config.label.column), path)
            if config.weight is not None:
                check_number(schema.field(config.weight.column), path)
        for numeric in config.numeric:
            check_number(schema.field(numeric.name), path)
        bags = {each.name for each in (*config.multi_valued, *config.sequences)}
        for each in config.keyed():
            kind = schema.field(each.name).type
            if each.name in bags and is_list(kind):
                kind = kind.value_type
            elif each.name in bags and not (is_text(plain(kind)) or pa.types.is_null(kind)):
                raise InputError(f"column '{each.name}' holds {kind}: lists, or texts to be split, are needed", path)
            try:
                check_key(kind, each)
            except InputError as error:
                raise InputError(error.message, path) from None

    def rows(self, pieces: Pieces | None = None) -> int:
        """The number of rows in the file's metadata, which are checked against `pieces`, if given."""
        if pieces:
            with parquet_errors(self.path), pa.OSFile(str(self.path)) as file:
                _check_footer(file, pieces)
        return sum(self._groups)

    @property
    def groups(self) -> list[int]:
        """The number of rows of each row group."""
        return self._groups

    def blocks(self, start: int, rows: int, pieces: Pieces | None = None) -> Generator[RawBlock, None, None]:
        """As `TextLog.blocks`, but rows are parsed as they are read, from the row group of row `start` on."""
        end = sum(self._groups)
        yield from self.ranges([(at, min(at + rows, end)) for at in range(start, end, rows)], pieces)

    def ranges(self, wanted: Sequence[Range], pieces: Pieces | None = None) -> Generator[RawBlock, None, None]:
        """Yields a block for each of these ranges of rows, which ascend and are not empty. Row groups without any of
        them are not read. Otherwise as `blocks`."""
        with self._opened(pieces) as opened:
            for run in _runs(wanted):
                yield from self._cut(opened.rows(run[0][0], run[-1][1]), run)

    def _cut(self, batches: Iterator[pa.RecordBatch], wanted: Sequence[Range]) -> Iterator[RawBlock]:
        """Cuts the consecutive rows of these ranges. The last block is incomplete if rows are missing."""
        ahead = iter(wanted)
        first, end = next(ahead)
        held, size, num_bytes = [], 0, 0
        for batch in batches:
            while batch.num_rows:
                part, batch = batch.slice(0, end - first - size), batch.slice(end - first - size)
                held.append(part)
                size, num_bytes = size + part.num_rows, num_bytes + part.nbytes
                if num_bytes > MOST_BLOCK_BYTES:
                    what = f"{MOST_BLOCK_BYTES >> 30} GiB and more in rows {first + 1:,} to {first + size:,}"
                    once = f"{end - first:,} rows are taken at once (data.shuffle, training.batch_size)"
                    raise InputError(f"{what}: {once}", self.path)
                if first + size == end:
                    yield _RawBatches(first, held)
                    first, end = next(ahead, (end, end))
                    held, size, num_bytes = [], 0, 0
        if held:
            yield _RawBatches(first, held)

    @contextmanager
    def _opened(self, pieces: Pieces | None) -> Iterator[_Opened]:
        with parquet_errors(self.path), pa.OSFile(str(self.path)) as file:
            if pieces:
                _check_footer(file, pieces)
            plan = reading_plan(self.path, self._wanted, BATCH_ROWS)
            # With pre_buffer Arrow would hold the whole file in memory.
            with pq.ParquetFile(file, pre_buffer=False, read_dictionary=list(plan.dictionaries)) as parquet:
                chunks = column_chunks(self.path) if pieces else ()
                yield _Opened(file, parquet, plan.rows, self._groups, self._wanted, pieces, chunks)


@dataclass(frozen=True)
class _Opened:
    """A file that is open: the rows that are decoded at once, the rows of each row group, the columns that are read;
    with `pieces` also the column chunks of each row group."""

    file: pa.OSFile
    parquet: pq.ParquetFile
    most: int
    groups: Sequence[int]
    wanted: Sequence[str]
    pieces: Pieces | None
    chunks: Sequence[Sequence[Chunk]]

    def rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows [start, end), in batches."""
        ends = np.cumsum(self.groups)
        group, last = int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(ends, end))
        done = int(ends[group]) - self.groups[group]
        checked = done
        chosen = list(range(group, last + 1))
        for batch in self.parquet.iter_batches(self.most, chosen, list(self.wanted), use_threads=True):
            while self.pieces and checked < done + batch.num_rows:
                content = _content(self.file, self.chunks[group], self.wanted)
                self.pieces.check(1 + group, content, f"row group {group}")
                checked += self.groups[group]
                group += 1
            skipped = max(start - done, 0)
            yield batch.slice(skipped, max(0, end - done - skipped))
            done += batch.num_rows


def _runs(wanted: Sequence[Range]) -> Iterator[list[Range]]:
    """Yields the longest lists of ranges each of which begins where the one before ends."""
    run: list[Range] = []
    for each in wanted:
        if run and run[-1][1] != each[0]:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _check_footer(file: pa.OSFile, pieces: Pieces) -> None:
    end = file.size() - _END_BYTES
    size = int.from_bytes(file.read_at(4, end), "little")
    pieces.check(0, (file.read_at(size, end - size),), "the footer")


def _content(file: pa.OSFile, group: Sequence[Chunk], names: Sequence[str]) -> Iterator[bytes]:
    """Yields the bytes of the columns with these names in a row group."""
    for column in group:
        if any(column.path == name or column.path.startswith(f"{name}.") for name in names):
            at = min((place for place in (column.data_page_offset, column.dictionary_page_offset) if place), default=0)
            end = min(at + column.total_compressed_size, file.size())
            for first in range(at, end, PIECE_BYTES):
                yield file.read_at(min(PIECE_BYTES, end - first), first)


@dataclass(frozen=True)
class _RawBatches:
    first: int
    batches: Sequence[pa.RecordBatch]

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def parse(self, rows: np.ndarray) -> Parsed:
        first = 0
        for batch in self.batches:
            here = rows[slice(*np.searchsorted(rows, (first, first + batch.num_rows)))]
            if here.size:
                yield self.first + here, _taken(batch, here - first)
            first += batch.num_rows


def _taken(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """The rows with these indices, int64 [k], ascending. Copied only if there are gaps."""
    if rows[-1] - rows[0] == rows.size - 1:
        return batch.slice(rows[0], rows.size)
    return batch.take(pa.array(rows))
