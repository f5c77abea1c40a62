"""The formats of click logs: each reads a file in bounded memory, block by block, and parses the rows that are wanted.

    csv      a delimiter between columns; quotes only where it is a comma (RFC 4180), and no line breaks within them;
             names in the first line unless the config gives them; blank lines count for nothing
    parquet
    libsvm   `label id:1 id:1 ...`, also of libFM: the categorical features' ids by position, or all ids one bag

Of a text no more than the wanted lines is parsed; of Parquet, whose values are packed column by column, whole row
groups are. Parsing is pyarrow's, but for libsvm's. What is wrong with a file is said with its row, counted from 1
without the header.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from marius_oac.config_ctr import LogConfig
from marius_oac.data.log_columns import key_type
from marius_oac.data.log_lines import BYTE_ORDER_MARK, TEXT_BYTES, Lines, blocks_of_lines, count_rows, read_first_line
from marius_oac.data.svm import parse_svm
from marius_oac.errors import InputError

BATCH_ROWS = 1 << 16
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".libfm": "libsvm",
}

Parsed = Iterator[tuple[np.ndarray, pa.RecordBatch]]
"""Batches in order, and the number in the file, from 0, of each of their rows, int64 [n]."""


class RawBlock(Protocol):
    """Consecutive rows of a file, n in all, not parsed yet."""

    def __len__(self) -> int: ...

    def parse(self, rows: np.ndarray) -> Parsed:
        """The rows with these numbers, int64 [k] in [0, n), ascending, k >= 1; may be called by several threads.

        Raises:
            InputError: what the format refuses.
        """
        ...


def open_log(path: Path, config: LogConfig, with_labels: bool) -> TextLog | ParquetLog | SvmLog:
    """The reader of a file by the config's format, or its suffix.

    Raises:
        InputError: the suffix says nothing; the file can't be read, or is not of the format; its columns aren't the
            schema's.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    suffix = "".join(suffixes[-2:-1] if zipped else suffixes[-1:])
    kind = _SUFFIXES.get(suffix) if config.format == "auto" else config.format
    if kind is None:
        known = ", ".join((*_SUFFIXES, ".gz of the texts"))
        raise InputError(f"unknown kind of file ({known} are known); data.format says what it is", path)
    if kind == "parquet":
        return ParquetLog(path, config, with_labels)
    if kind == "libsvm":
        return SvmLog(path, config)
    return TextLog(path, config, with_labels, "\t" if suffix in (".tsv", ".txt") else ",")


class TextLog:
    """A file of delimited text. `names` are its columns; `kinds` is what keys of features of kind auto are."""

    format = "csv"

    def __init__(self, path: Path, config: LogConfig, with_labels: bool, delimiter: str):
        self.path, self._config, self._delimiter = path, config, config.delimiter or delimiter
        if len(self._delimiter) != 1 or not self._delimiter.isascii() or self._delimiter in '\r\n"':
            raise InputError(f"one ASCII character is needed, not {self._delimiter!r}", "data.delimiter")
        self.kinds = {each.name: "string" for each in config.features() if each.kind == "auto"}
        first = self._first_line()
        if config.columns:
            self.names = list(config.columns)
            if len(first) == len(self.names) - 1 and not with_labels and config.label in self.names:
                self.names.remove(config.label)
            if len(first) != len(self.names):
                raise InputError(f"data.columns names {len(self.names)} columns, the file has {len(first)}", path)
        else:
            self.names = first
        self._wanted = check_columns(self.names, config, with_labels, path)

    def rows(self) -> int:
        """Counts the lines that aren't blank, but for the header."""
        return count_rows(self.path) - self._header

    def blocks(self, start: int, rows: int) -> Iterator[RawBlock]:
        """Blocks of so many rows from row `start` on; the last one may be shorter.

        Raises:
            InputError: a damaged archive; when a block is parsed, ragged rows, what is no number in a numeric column,
                bytes that aren't UTF-8, a value that spans lines.
        """
        for lines in blocks_of_lines(self.path, start + self._header, rows):
            yield _RawLines(replace(lines, first=lines.first - self._header), self._parse)

    @property
    def _header(self) -> int:
        return 0 if self._config.columns else 1

    def _parse(self, lines: Lines, wanted: np.ndarray) -> Parsed:
        text, rows, done = lines.pick(wanted), lines.first + wanted, 0
        try:
            table = self._table(text, threads=True)
        except pa.ArrowInvalid as error:
            raise self._blamed(text, rows, error) from None
        if table.num_rows != rows.size or self._open_quote(lines.pick(wanted[-1:])):
            raise _not_as_counted(rows, table.num_rows, self.path)
        for batch in table.to_batches():
            yield rows[done : done + batch.num_rows], batch
            done += batch.num_rows

    def _table(self, text: np.ndarray, threads: bool) -> pa.Table:
        config = self._config
        numbers = {config.label: pa.float64(), **dict.fromkeys(config.numeric, pa.float32())}
        if text[:3].tobytes() == BYTE_ORDER_MARK:  # within a file it belongs to a value
            text = np.concatenate((np.frombuffer(b"\n", np.uint8), text))
        return pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            pa_csv.ReadOptions(use_threads=threads, block_size=TEXT_BYTES, column_names=self.names),
            pa_csv.ParseOptions(delimiter=self._delimiter, quote_char='"' if self._delimiter == "," else False),
            pa_csv.ConvertOptions(
                column_types={name: numbers.get(name, pa.string()) for name in self._wanted},
                include_columns=self._wanted,
                null_values=[""],
            ),
        )

    def _open_quote(self, line: np.ndarray) -> bool:
        """Whether a value of this line goes on in the next: at the end of a text Arrow takes it for closed."""
        if self._delimiter != "," or np.count_nonzero(line == ord('"')) % 2 == 0:
            return False
        try:
            return self._table(np.concatenate((line, line)), threads=False).num_rows != 2
        except pa.ArrowInvalid:
            return True

    def _blamed(self, text: np.ndarray, rows: np.ndarray, error: pa.ArrowInvalid) -> InputError:
        """The error with its row, which Arrow knows only where it parses one piece after the other."""
        message = str(error)
        try:
            self._table(text, threads=False)
        except pa.ArrowInvalid as again:
            message = str(again)
        row, column = re.search(r"Row #(\d+): ", message), re.search(r"In CSV column #(\d+)", message)
        place = f"row {rows[int(row[1]) - 1] + 1}: " if row else ""
        name = f"column '{self.names[int(column[1])]}' has " if column else ""
        what = re.sub(r"^(In CSV column #\d+: |CSV parse error: )?(Row #\d+: )?", "", message)
        what = re.sub(r"^CSV conversion error to (float|double): (.*)", r"\2 (a number is needed)", what)
        what = re.sub(r"^CSV conversion error to \w+: ", "", what)
        return InputError(f"{place}{name}{what[:200]}", self.path)

    def _first_line(self) -> list[str]:
        line = read_first_line(self.path)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"row 0: byte {line[error.start]:#04x} of the first line is not UTF-8", self.path
            ) from None
        if self._delimiter != ",":
            return text.split(self._delimiter)
        try:
            return next(csv.reader([text], strict=True), [])
        except csv.Error as error:
            raise InputError(f"the quotes of the first line don't match ({error})", self.path) from None


class ParquetLog:
    """A Parquet file; `names` and `kinds` as above."""

    format = "parquet"

    def __init__(self, path: Path, config: LogConfig, with_labels: bool):
        self.path = path
        try:
            with pq.ParquetFile(path) as parquet:
                schema = parquet.schema_arrow
                self._groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"not a Parquet file, or a damaged one: {error}", path) from None
        self.names = list(schema.names)
        self._wanted = check_columns(self.names, config, with_labels, path)
        numbers = [config.label] if with_labels else []
        for name in (*numbers, *config.numeric):
            if not _is_number(schema.field(name).type):
                raise InputError(f"column '{name}' holds {schema.field(name).type}: numbers are needed", path)
        self.kinds = {}
        bags = {each.name for each in (*config.multi_valued, *config.sequences)}
        for each in config.features():
            kind = schema.field(each.name).type
            if each.name in bags and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
                kind = kind.value_type
            elif each.name in bags and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
                raise InputError(f"column '{each.name}' holds {kind}: lists, or texts to be split, are needed", path)
            try:
                key = key_type(kind, each)
            except InputError as error:
                raise InputError(error.message, path) from None
            if each.kind == "auto" and key is not None:
                self.kinds[each.name] = key

    def rows(self) -> int:
        """By the file's metadata."""
        return sum(self._groups)

    def blocks(self, start: int, rows: int) -> Iterator[RawBlock]:
        """As `TextLog.blocks`, but parsed as they are read; begins with the row group that has row `start`."""
        held, size = [], 0
        for batch in self._batches(start):
            while batch.num_rows:
                part, batch = batch.slice(0, rows - size), batch.slice(rows - size)
                held.append(part)
                size += part.num_rows
                if size == rows:
                    yield _RawBatches(start, held)
                    start, held, size = start + size, [], 0
        if held:
            yield _RawBatches(start, held)

    def _batches(self, start: int) -> Iterator[pa.RecordBatch]:
        group, done = 0, 0
        while group < len(self._groups) and done + self._groups[group] <= start:
            done += self._groups[group]
            group += 1
        try:
            # Without pre_buffer=False the whole file would gather in memory while it is read.
            with pq.ParquetFile(self.path, pre_buffer=False) as parquet:
                groups = list(range(group, len(self._groups)))
                for batch in parquet.iter_batches(BATCH_ROWS, groups, self._wanted, use_threads=True):
                    yield batch.slice(max(start - done, 0))
                    done += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"not a Parquet file, or a damaged one: {error}", self.path) from None


class SvmLog:
    """A libsvm or libFM file; all lines have labels, whether they are wanted or not. `kinds` as above."""

    format = "libsvm"

    def __init__(self, path: Path, config: LogConfig):
        if config.numeric or config.sequences or bool(config.categorical) == bool(config.multi_valued):
            raise InputError("a libsvm file has categorical features, or one that is multi-valued", "data")
        if len(config.multi_valued) > 1:
            raise InputError("a libsvm file has one bag of ids, not several", "data.multi_valued")
        self.path, self._config = path, config
        self.names = [config.label, *(each.name for each in config.features())]
        for each in config.features():
            if each.kind not in ("auto", "integer"):
                raise InputError(f"the ids of a libsvm file are integers, not {each.kind}", f"data: '{each.name}'")
        self.kinds = {each.name: "integer" for each in config.features() if each.kind == "auto"}
        read_first_line(path)

    def rows(self) -> int:
        """Counts the lines that aren't blank."""
        return count_rows(self.path)

    def blocks(self, start: int, rows: int) -> Iterator[RawBlock]:
        """As `TextLog.blocks`.

        Raises:
            InputError: a damaged archive; when a block is parsed, a syntax error, a value other than 1, ids of
                categorical features that aren't one each.
        """
        for lines in blocks_of_lines(self.path, start, rows):
            yield _RawLines(lines, self._parse)

    def _parse(self, lines: Lines, wanted: np.ndarray) -> Parsed:
        rows = lines.first + wanted
        labels, ids, offsets = parse_svm(lines.pick(wanted), self.path, rows)
        if labels.size != rows.size:
            raise _not_as_counted(rows, labels.size, self.path)
        yield rows, self._batch(labels, ids, offsets, rows)

    def _batch(self, labels: np.ndarray, ids: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> pa.RecordBatch:
        features = self._config.categorical
        if not features:
            lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
            return pa.RecordBatch.from_arrays([pa.array(labels), lists], names=self.names)
        wrong = np.flatnonzero(np.diff(offsets) != len(features))
        if len(wrong):
            found = int(np.diff(offsets)[wrong[0]])
            raise InputError(
                f"row {rows[wrong[0]] + 1}: {found} ids for {len(features)} categorical features", self.path
            )
        columns = ids.reshape(-1, len(features)).T
        arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
        return pa.RecordBatch.from_arrays([pa.array(labels), *arrays], names=self.names)


@dataclass(frozen=True)
class _RawLines:
    lines: Lines
    parser: Callable[[Lines, np.ndarray], Parsed]

    def __len__(self) -> int:
        return len(self.lines)

    def parse(self, rows: np.ndarray) -> Parsed:
        return self.parser(self.lines, rows)


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
    """Some rows, ascending; copied only where there are gaps."""
    if rows[-1] - rows[0] == rows.size - 1:
        return batch.slice(rows[0], rows.size)
    return batch.take(pa.array(rows))


def _not_as_counted(rows: np.ndarray, found: int, path: Path) -> InputError:
    what = f"{rows.size:,} examples were counted, {found:,} are found: a quoted value spans lines"
    return InputError(f"rows {rows[0] + 1} to {rows[-1] + 1}: {what}, or the file has changed", path)


def check_columns(names: list[str], config: LogConfig, with_labels: bool, path: Path) -> list[str]:
    """The columns to read of a file that has columns `names`.

    Raises:
        InputError: two have the same name; the schema's are not all there; there are others that `ignored` lacks.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two columns are named '{twice}'", path)
    wanted = [*config.numeric, *(each.name for each in config.features())]
    wanted = [config.label, *wanted] if with_labels else wanted
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names[:10])}"
            raise InputError(f"there is no column '{name}', which the schema names; {hint}", path)
    known = {config.label, *wanted, *config.ignored}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"the schema names no column '{unknown[0]}' (data.ignored lists those to leave out)", path)
    return wanted


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)
