"""The formats of click logs. Each reader reads a file in bounded memory, block by block, and parses the wanted rows.

    csv      delimited columns; quotes as in RFC 4180 if the delimiter is a comma, the fields of the first line are
             quoted or the config says so, without line breaks in them; names in the first line unless the config gives
             them; blank lines are ignored
    parquet
    libsvm   `label id:1 id:1 ...`, also of libFM: either the ids of the categorical features by position, or one bag

Only the wanted lines of a text are parsed. Of Parquet, which stores values by column, whole row groups are. pyarrow
parses all formats except libsvm. Errors name the row, counted from 1 without the header, and in a text the line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.labels import read_as
from marius_oac.data.logs.lines import (
    BYTE_ORDER_MARK,
    SPANS,
    TEXT_BYTES,
    Lines,
    blocks_of_lines,
    count_rows,
    read_first_line,
)
from marius_oac.data.logs.numbers import arrow_type, floats
from marius_oac.data.logs.parquet import ParquetLog
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.place import Place, format_of, place_of
from marius_oac.data.logs.schema import MISSING_TEXTS, Parsed, RawBlock, check_columns
from marius_oac.data.logs.svm import parse_svm
from marius_oac.errors import InputError

BLANKS = "blanks"
"""The delimiter of columns that runs of blanks tell apart."""


def open_log(path: Path, config: LogConfig, with_labels: bool) -> TextLog | ParquetLog | SvmLog:
    """Opens a file with the reader for the config's format, or for its suffix.

    Raises:
        InputError: the suffix is unknown; the file can't be read, or is not of the format; its columns aren't the
            schema's.
    """
    kind, delimiter = format_of(path, config.format)
    if kind == "parquet":
        return ParquetLog(path, config, with_labels)
    if kind == "libsvm":
        return SvmLog(path, config)
    return TextLog(path, config, with_labels, delimiter)


class TextLog:
    """A file of delimited text. `names` are its columns."""

    format = "csv"

    def __init__(self, path: Path, config: LogConfig, with_labels: bool, delimiter: str):
        self.path, self._config, self._delimiter = path, config, config.delimiter or delimiter
        self._blanks, self._quoted = self._delimiter == BLANKS, False
        self._delimiter = " " if self._blanks else self._delimiter
        if len(self._delimiter) != 1 or not self._delimiter.isascii() or self._delimiter in '\r\n"':
            raise InputError(f"one ASCII character is needed, not {self._delimiter!r}", "data.delimiter")
        first = self._first_line()
        if config.columns:
            self.names = list(config.columns)
            if len(first) == len(self.names) - 1 and not with_labels and config.label.column in self.names:
                self.names.remove(config.label.column)
            if len(first) != len(self.names):
                raise InputError(f"data.columns names {len(self.names)} columns, the file has {len(first)}", path)
        else:
            self.names = first
        self._wanted = check_columns(self.names, config, with_labels, path)

    def rows(self, pieces: Pieces | None = None) -> int:
        """Counts the lines that aren't blank, without the header, and checks the contents against `pieces`, if given.

        Raises:
            InputError: as `count_rows`.
        """
        return count_rows(self.path, pieces) - self._header

    def blocks(self, start: int, rows: int, pieces: Pieces | None = None) -> Generator[RawBlock, None, None]:
        """Yields blocks of so many rows from row `start` on; the last one may be shorter. The contents are checked
        against `pieces`, if given.

        Raises:
            InputError: the archive is damaged, or a piece has changed. Parsing a block raises it for ragged rows, a
                numeric column with something else, bytes that aren't UTF-8, or a value that spans lines.
        """
        for lines in blocks_of_lines(self.path, start + self._header, rows, pieces):
            yield _RawLines(replace(lines, first=lines.first - self._header), self._parse)

    @property
    def _header(self) -> int:
        return 0 if self._config.columns else 1

    def _parse(self, lines: Lines, wanted: np.ndarray) -> Parsed:
        text, rows, done, numbers = lines.pick(wanted), lines.first + wanted, 0, True
        try:
            table = self._table(text, threads=True)
        except pa.ArrowInvalid:
            try:
                table, numbers = self._table(text, threads=True, numbers=False), False
            except pa.ArrowInvalid as error:
                raise self._blamed(text, rows, error) from None
        if table.num_rows != rows.size or self._open_quote(lines.pick(wanted[-1:])):
            raise _not_as_counted(rows, table.num_rows, self.path)
        table = table if numbers else self._with_numbers(table, rows)
        for batch in table.to_batches():
            yield rows[done : done + batch.num_rows], batch
            done += batch.num_rows

    def _table(self, text: np.ndarray, threads: bool, numbers: bool = True) -> pa.Table:
        """The columns, those of numbers as texts if `numbers` is false."""
        config = self._config
        types = {config.label.column: read_as()}
        types |= {each.name: arrow_type(each) for each in config.numeric if numbers}
        if config.weight is not None:
            types[config.weight.column] = pa.float64()
        if self._blanks:
            text = single_blanks(text)
        if text[:3].tobytes() == BYTE_ORDER_MARK:  # inside a file it is part of a value, and Arrow would drop it
            text = np.concatenate((np.frombuffer(b"\n", np.uint8), text))
        return pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            pa_csv.ReadOptions(use_threads=threads, block_size=TEXT_BYTES, column_names=self.names),
            pa_csv.ParseOptions(delimiter=self._delimiter, quote_char='"' if self._quoted else False),
            pa_csv.ConvertOptions(
                column_types={name: types.get(name, pa.string()) for name in self._wanted},
                include_columns=self._wanted,
                null_values=(*MISSING_TEXTS, *config.missing),
            ),
        )

    def _with_numbers(self, table: pa.Table, rows: np.ndarray) -> pa.Table:
        """The columns with the numbers of texts. Some are none to Arrow, such as a blank, which means a missing one."""
        place = place_of(self.path, rows, self._config)
        for each in self._config.numeric:
            if each.name in table.column_names and not each.written:
                column = table.column(each.name).combine_chunks()
                values = floats(column, each, arrow_type(each), self._config, place)
                table = table.set_column(
                    table.column_names.index(each.name), each.name, pa.array(values, from_pandas=True)
                )
        return table

    def _open_quote(self, line: np.ndarray) -> bool:
        """Whether a quoted value of this line continues in the next. Arrow closes it silently at the end of a text."""
        if not self._quoted or np.count_nonzero(line == ord('"')) % 2 == 0:
            return False
        try:
            return self._table(np.concatenate((line, line)), threads=False).num_rows != 2
        except pa.ArrowInvalid:
            return True

    def _blamed(self, text: np.ndarray, rows: np.ndarray, error: pa.ArrowInvalid) -> InputError:
        """The error with its row, which Arrow knows only when it parses without threads."""
        message = str(error)
        try:
            self._table(text, threads=False, numbers=False)
        except pa.ArrowInvalid as again:
            message = str(again)
        row, column = re.search(r"Row #(\d+): ", message), re.search(r"In CSV column #(\d+)", message)
        name = f"column '{self.names[int(column[1])]}' has " if column else ""
        what = re.sub(r"^(In CSV column #\d+: |CSV parse error: )?(Row #\d+: )?", "", message)
        what = re.sub(r"^CSV conversion error to \w+: ", "", what)
        if self._quoted and what.startswith("Expected ") and what.partition(": ")[2].count('"') % 2:
            what = f"{what[:200]}; {SPANS}"
        if row:
            return place_of(self.path, rows, self._config).wrong(int(row[1]) - 1, f"{name}{what[:500]}")
        return InputError(f"{name}{what[:500]}", self.path)

    def _first_line(self) -> list[str]:
        line = read_first_line(self.path)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"byte {line[error.start]:#04x} is not UTF-8", f"{self.path}:1") from None
        if self._blanks:
            return text.split()
        fields, said = text.split(self._delimiter), self._config.quotes
        self._quoted = said if said is not None else self._delimiter == "," or all(map(is_quoted, fields))
        if not self._quoted:
            return fields
        try:
            return next(csv.reader([text], delimiter=self._delimiter, strict=True), [])
        except csv.Error as error:
            raise InputError(f"the quotes of the first line don't match ({error})", self.path) from None


class SvmLog:
    """A libsvm or libFM file. All lines have labels, whether they are needed or not."""

    format = "libsvm"

    def __init__(self, path: Path, config: LogConfig):
        if config.weight is not None:
            raise InputError("a libsvm file has no column of weights", "data.weight")
        if config.numeric or config.sequences or bool(config.categorical) == bool(config.multi_valued):
            raise InputError("a libsvm file has categorical features, or one that is multi-valued", "data")
        if len(config.multi_valued) > 1:
            raise InputError("a libsvm file has one bag of ids, not several", "data.multi_valued")
        self.path, self._config = path, config
        self.names = [config.label.column, *(each.name for each in config.keyed())]
        for each in config.keyed():
            if each.kind not in ("auto", "integer"):
                raise InputError(f"the ids of a libsvm file are integers, not {each.kind}", f"data: '{each.name}'")
        read_first_line(path)

    def rows(self, pieces: Pieces | None = None) -> int:
        """Counts the lines that aren't blank, as `TextLog.rows`."""
        return count_rows(self.path, pieces)

    def blocks(self, start: int, rows: int, pieces: Pieces | None = None) -> Generator[RawBlock, None, None]:
        """As `TextLog.blocks`.

        Raises:
            InputError: the archive is damaged, or a piece has changed. Parsing a block raises it for a syntax error, a
                value other than 1, or another number of ids than categorical features.
        """
        for lines in blocks_of_lines(self.path, start, rows, pieces):
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
            message = f"{found} ids for {len(features)} categorical features"
            raise Place(self.path, rows, header=0).wrong(int(wrong[0]), message)
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


def single_blanks(text: np.ndarray) -> np.ndarray:
    """Lines, uint8, with one blank in place of each run of blanks and tabs, and none at their ends."""
    single = re.sub(rb"[ \t]+", b" ", re.sub(rb"[ \t]*([\r\n])[ \t]*", rb"\1", text.tobytes()))
    return np.frombuffer(single.strip(b" "), np.uint8)


def is_quoted(field: str) -> bool:
    """Whether a field of a text begins and ends with quotes."""
    return len(field) > 1 and field[0] == field[-1] == '"'


def _not_as_counted(rows: np.ndarray, found: int, path: Path) -> InputError:
    what = f"{rows.size:,} examples were counted, {found:,} are found: the file has changed, or {SPANS}"
    return InputError(f"rows {rows[0] + 1} to {rows[-1] + 1}: {what}", path)
