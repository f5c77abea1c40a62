"""The formats of click logs: each reads a file in bounded memory into Arrow batches of the schema's columns.

    csv      a delimiter between columns; quotes only where it is a comma (RFC 4180), and no line breaks within them;
             names in the first line unless the config gives them; blank lines count for nothing
    parquet
    libsvm   `label id:1 id:1 ...`, also of libFM: the categorical features' ids by position, or all ids one bag

Parsing is pyarrow's, but for libsvm's. What is wrong with a file is said with its row, counted from 1 without the
header.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from marius_oac.config_ctr import LogConfig
from marius_oac.data.fingerprints import count_lines
from marius_oac.data.log_columns import key_type
from marius_oac.data.progress import Progress
from marius_oac.data.svm import parse_svm
from marius_oac.errors import InputError

BATCH_ROWS = 1 << 16
TEXT_BYTES = 4 << 20  # of text parsed at once
_FIRST_LINE_BYTES = 1 << 20
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
        return _count_rows(self.path) - (0 if self._config.columns else 1)

    def batches(self, start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(row of the file, batch) of batches in order that hold all rows from `start` on; rows before are passed over.

        Raises:
            InputError: ragged rows, what is no number in a numeric column, bytes that aren't UTF-8, a damaged archive.
        """
        try:
            yield from self._parsed(start, threads=True)
        except pa.ArrowInvalid as error:
            raise self._blamed(error) from None
        except OSError as error:
            raise read_error(error, self.path) from None

    def _parsed(self, start: int, threads: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
        config, done = self._config, 0
        numbers = {config.label: pa.float64(), **dict.fromkeys(config.numeric, pa.float32())}
        with (
            open_text(self.path) as stream,
            pa_csv.open_csv(
                stream,
                pa_csv.ReadOptions(
                    use_threads=threads,
                    block_size=TEXT_BYTES,
                    column_names=self.names,
                    skip_rows=0 if config.columns else 1,
                ),
                pa_csv.ParseOptions(delimiter=self._delimiter, quote_char='"' if self._delimiter == "," else False),
                pa_csv.ConvertOptions(
                    column_types={name: numbers.get(name, pa.string()) for name in self._wanted},
                    include_columns=self._wanted,
                    null_values=[""],
                ),
            ) as reader,
        ):
            for batch in reader:
                if done + batch.num_rows > start:
                    yield done, batch
                done += batch.num_rows

    def _blamed(self, error: pa.ArrowInvalid) -> InputError:
        """The error with its row, which Arrow knows only where it parses one piece after the other."""
        message = str(error)
        try:
            for _ in self._parsed(0, threads=False):
                pass
        except pa.ArrowInvalid as again:
            message = str(again)
        except OSError as again:
            return read_error(again, self.path)
        row, column = re.search(r"Row #(\d+): ", message), re.search(r"In CSV column #(\d+)", message)
        place = f"row {int(row[1]) - (0 if self._config.columns else 1)}: " if row else ""
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

    def batches(self, start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `TextLog.batches`; begins with the row group that has row `start`."""
        group, done = 0, 0
        while group < len(self._groups) and done + self._groups[group] <= start:
            done += self._groups[group]
            group += 1
        try:
            # Without pre_buffer=False the whole file would gather in memory while it is read.
            with pq.ParquetFile(self.path, pre_buffer=False) as parquet:
                groups = list(range(group, len(self._groups)))
                for batch in parquet.iter_batches(BATCH_ROWS, groups, self._wanted, use_threads=True):
                    if done + batch.num_rows > start:
                        yield done, batch
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
        return _count_rows(self.path)

    def batches(self, start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `TextLog.batches`.

        Raises:
            InputError: a syntax error; a value other than 1; ids of categorical features that aren't one each.
        """
        done = 0
        for block in _whole_lines(self.path):
            labels, ids, offsets = parse_svm(block, self.path, done)
            if done + len(labels) > start:
                yield done, self._batch(labels, ids, offsets, done)
            done += len(labels)

    def _batch(self, labels: np.ndarray, ids: np.ndarray, offsets: np.ndarray, first_row: int) -> pa.RecordBatch:
        features = self._config.categorical
        if not features:
            lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
            return pa.RecordBatch.from_arrays([pa.array(labels), lists], names=self.names)
        wrong = np.flatnonzero(np.diff(offsets) != len(features))
        if len(wrong):
            found = int(np.diff(offsets)[wrong[0]])
            raise InputError(
                f"row {first_row + int(wrong[0]) + 1}: {found} ids for {len(features)} categorical features", self.path
            )
        columns = ids.reshape(-1, len(features)).T
        arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
        return pa.RecordBatch.from_arrays([pa.array(labels), *arrays], names=self.names)


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


def open_text(path: Path) -> BinaryIO:
    """A stream of the file's text, decompressed where the name ends in .gz."""
    return pa.input_stream(str(path), compression="gzip" if path.suffix.lower() == ".gz" else None)


def read_error(error: OSError, path: Path) -> InputError:
    """What a reader says of a file it can't read on."""
    if "Truncated compressed" in str(error):
        return InputError("the compressed file is truncated", path)
    if "inflate" in str(error):
        return InputError(f"not a gzip file, or a damaged one: {error}", path)
    return InputError(f"can't be read: {error.strerror or error}", path)


def read_first_line(path: Path) -> bytes:
    """The file's first line without its end or a byte order mark.

    Raises:
        InputError: it can't be read, is blank, or is compressed without saying so in its name.
    """
    try:
        with open_text(path) as stream:
            head = stream.read(_FIRST_LINE_BYTES)
    except OSError as error:
        raise read_error(error, path) from None
    if head.startswith(b"\x1f\x8b"):
        raise InputError("the file is compressed with gzip, but its name doesn't end in .gz", path)
    if head.startswith(b"PAR1"):
        raise InputError("this is a Parquet file, but its name or data.format says it is text", path)
    line = re.split(rb"[\r\n]", head.removeprefix(b"\xef\xbb\xbf"), maxsplit=1)[0]
    if not line:
        raise InputError("the first line is blank" if head else "the file has no examples", path)
    return line


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with open_text(path) as stream:
            while piece := stream.read(TEXT_BYTES):
                yield piece
    except OSError as error:
        raise read_error(error, path) from None


def _count_rows(path: Path) -> int:
    rows, inside = 0, False
    with Progress(f"counting the examples of {path.name}", "B") as progress:
        for piece in _pieces(path):
            lines, inside = count_lines(np.frombuffer(piece, np.uint8), inside)
            rows += lines
            progress.add(len(piece))
    return rows + inside


def _whole_lines(path: Path) -> Iterator[np.ndarray]:
    """Blocks of whole lines, uint8, the last line's end added where it is missing."""
    rest = b""
    for piece in _pieces(path):
        end = piece.rfind(b"\n") + 1
        if end:
            yield np.frombuffer(rest + piece[:end], np.uint8)
            rest = piece[end:]
        else:
            rest += piece
    if rest:
        yield np.frombuffer(rest + b"\n", np.uint8)
