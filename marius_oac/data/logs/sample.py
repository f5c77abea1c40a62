"""Reads the first rows of a click log without a configuration: finds its format, its delimiter and its columns.

Guarantees: at most `ROWS` rows are parsed; of a Parquet file only the first row groups are decoded.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from marius_oac.data.logs.formats import BLANKS, single_blanks
from marius_oac.data.logs.labels import number_of
from marius_oac.data.logs.lines import SPANS, blocks_of_lines, line_of_row, read_first_line
from marius_oac.data.logs.place import format_of
from marius_oac.data.logs.schema import is_usable
from marius_oac.data.logs.svm import parse_svm
from marius_oac.data.reading.parquet_pages import parquet_errors
from marius_oac.data.reading.readers import check_readable
from marius_oac.errors import InputError

ROWS = 1 << 15
_DELIMITERS = (",", "\t", ";", "|")
_HEAD = 100  # lines in which delimiters are counted
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL = re.compile(r"(^|;)[+-]?[0-9]+,[0-9]+(;|$)")
_SVM = re.compile(rb"[+-]?[0-9.]+([ \t]+[0-9]+:[^ \t]+)+[ \t]*")


@dataclass(frozen=True)
class LogSample:
    """The first rows of a log.

    Attributes:
        path: of the file.
        format: "csv", "parquet" or "libsvm".
        delimiter: of a text, as `data.delimiter`; else None.
        header: whether the file has names; else they are c0, c1 and so on.
        names: of the columns. Those of a libsvm file are "label" and its ids by position, or "ids" if rows differ in
            their number.
        columns: by name; strings as they are in the file, for Parquet the file's types.
        whole: whether these are all rows of the file.
        bytes_a_row: the average size of a row of a text; else 0.
        quotes: whether values of a text may be quoted.
        unusable: the types of the columns that are neither values nor lists of values, by name; they aren't read.
    """

    path: Path
    format: str
    delimiter: str | None
    header: bool
    names: list[str]
    columns: dict[str, pa.Array]
    whole: bool
    bytes_a_row: float = 0.0
    quotes: bool = False
    unusable: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows read."""
        return len(next(iter(self.columns.values())))


def read_sample(path: Path, format: str = "auto", delimiter: str | None = None, names: Sequence[str] = ()) -> LogSample:
    """Reads the first rows of a file.

    Args:
        format, delimiter, names: as `data.format`, `data.delimiter` and `data.columns` of a configuration.

    Raises:
        InputError: the file can't be read, has no rows or an unknown format, or its rows differ in their columns.
    """
    check_readable(path)
    kind, usual = format_of(path, format)
    if kind == "parquet":
        return _parquet(path)
    first = read_first_line(path)
    if kind == "libsvm" or _SVM.fullmatch(first):
        return _libsvm(path)
    return _text(path, delimiter or _delimiter(path, first, usual), list(names))


def _delimiter(path: Path, line: bytes, usual: str) -> str:
    """The usual delimiter; a semicolon in place of the comma if it is in all lines equally often, and commas are not or
    are decimal marks; or the most frequent delimiter if the first line doesn't have the usual one."""
    text = line.decode("utf-8", "replace")
    if usual == "," and ";" in text:
        head = next(blocks_of_lines(path, 0, _HEAD))
        lines = [_QUOTED.sub("", each) for each in head.text.tobytes().decode("utf-8", "replace").split("\n") if each]
        commas, semicolons = ({each.count(mark) for each in lines} for mark in ",;")
        if len(semicolons) == 1 and (len(commas) > 1 or _DECIMAL.search(lines[-1])):
            return ";"
    if usual in text:
        return usual
    found = Counter({each: text.count(each) for each in _DELIMITERS})
    best, count = found.most_common(1)[0]
    return best if count else usual


def _text(path: Path, delimiter: str, names: list[str]) -> LogSample:
    lines = next(blocks_of_lines(path, 0, ROWS + 2), None)
    if lines is None:
        raise InputError("the file has no examples", path)
    text = lines.pick(np.arange(len(lines)))
    shown, quoted = delimiter, delimiter == "," or _is_quoted(text, delimiter)
    if delimiter == BLANKS:
        text, delimiter, quoted = single_blanks(text), " ", False
    try:
        table = pa_csv.read_csv(
            pa.py_buffer(text),
            pa_csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
            pa_csv.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False),
            pa_csv.ConvertOptions(
                column_types={f"f{i}": pa.string() for i in range(_width(text, delimiter, quoted, path))},
                strings_can_be_null=False,
            ),
        ).combine_chunks()
    except pa.ArrowInvalid as error:
        what, row = re.sub(r"^CSV parse error: (Row #\d+: )?", "", str(error)), re.search(r"Row #(\d+)", str(error))
        where = f"{path}:{line_of_row(path, int(row[1]) - 1)}" if row else path
        open_quote = row is not None and what.partition(": ")[2].count('"') % 2
        spans = f"; {SPANS}" if quoted and open_quote else ""
        raise InputError(f"{what[:200]} (columns are told apart by {shown!r}){spans}", where) from None
    columns = [column.combine_chunks() for column in table.columns]
    first = [column[0].as_py() for column in columns]
    header = not names and _is_header(first, columns)
    twice = [name for name in first if name and first.count(name) > 1]
    if header and twice:
        raise InputError(f"two columns are named '{twice[0]}'", path)
    if names and len(names) != len(columns):
        raise InputError(f"{len(names)} columns are named, the file has {len(columns)}", path)
    whole = table.num_rows < ROWS + 2
    columns = [column.slice(int(header), ROWS) for column in columns]
    if not len(columns[0]):
        raise InputError("the file has no examples", path)
    found = first if header else names or [f"c{i}" for i in range(len(columns))]
    size = text.size / max(table.num_rows, 1)
    named = {name: column for name, column in zip(found, columns, strict=True) if name}
    return LogSample(path, "csv", shown, header, list(named), named, whole, size, quoted)


def _is_quoted(text: np.ndarray, delimiter: str) -> bool:
    """Whether there are quotes, and each stands around a whole field, or twice within such a field."""
    mark = re.escape(delimiter.encode())
    field = rb'(?:^|(?<=\n)|(?<=%s))[ ]*"[^"\n]*(?:""[^"\n]*)*"[ ]*(?=%s|\r?\n|\Z)' % (mark, mark)
    rest, fields = re.subn(field, b"", text.tobytes())
    return fields > 0 and b'"' not in rest


def _width(text: np.ndarray, delimiter: str, quoted: bool, path: Path) -> int:
    """The number of columns of the first line."""
    line = re.split(rb"[\r\n]", text[: 1 << 20].tobytes(), maxsplit=1)[0]
    try:
        decoded = line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"byte {line[error.start]:#04x} is not UTF-8", f"{path}:1") from None
    return len(next(csv.reader([decoded], delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else 3)))


def _is_header(first: list[str], columns: list[pa.Array]) -> bool:
    """Whether the first line is a header: no field is a number or repeats in its column. Fields may be empty, as above
    the row numbers that pandas writes."""
    texts = [each.strip() for each in first]
    if not any(texts) or any(number_of(each) is not None for each in texts):
        return False
    return all(each not in _values(column) for each, column in zip(texts, columns, strict=True) if each)


def _values(column: pa.Array) -> set[str]:
    """The different values after the first line."""
    return {each.strip() for each in column.slice(1).unique().to_pylist()}


def _parquet(path: Path) -> LogSample:
    with parquet_errors(path), pq.ParquetFile(path, pre_buffer=False) as parquet:
        total, schema = parquet.metadata.num_rows, parquet.schema_arrow
        unusable = {each.name: str(each.type) for each in schema if not is_usable(each.type)}
        wanted = [name for name in schema.names if name not in unusable]
        batch = next(parquet.iter_batches(ROWS, columns=wanted), None)
    if not batch:
        raise InputError("the file has no examples", path)
    names = list(batch.schema.names)
    columns = dict(zip(names, batch.columns, strict=True))
    return LogSample(path, "parquet", None, True, names, columns, total <= ROWS, unusable=unusable)


def _libsvm(path: Path) -> LogSample:
    lines = next(blocks_of_lines(path, 0, ROWS), None)
    if lines is None:
        raise InputError("the file has no examples", path)
    text, rows = lines.pick(np.arange(len(lines))), np.arange(len(lines))
    labels, ids, offsets = parse_svm(text, path, rows)
    counts = np.diff(offsets)
    columns: dict[str, pa.Array] = {"label": pa.array(labels)}
    if (counts == counts[0]).all() and counts[0]:
        columns |= {f"c{i}": pa.array(column) for i, column in enumerate(ids.reshape(-1, counts[0]).T)}
    else:
        columns["ids"] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
    size = text.size / max(len(lines), 1)
    return LogSample(path, "libsvm", None, True, list(columns), columns, len(lines) < ROWS, size)
