"""Writes the file of predictions, with columns `file`, `row` (from 0) and `probability`; Parquet or text, by suffix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from marius_oac.errors import InputError

_ENCODED = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema([("file", _ENCODED), ("row", pa.int64()), ("probability", pa.float32())])
_TEXT_SCHEMA = _SCHEMA.set(0, pa.field("file", pa.string()))  # CSV has no dictionaries
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def check_suffix(path: Path) -> None:
    """Raises InputError unless the suffix is one of a known format."""
    if not (_is_parquet(path) or _delimiter(path)):
        known = ", ".join((".parquet", *_DELIMITERS, *(f"{suffix}.gz" for suffix in _DELIMITERS)))
        raise InputError(f"its suffix says what is written, one of {known}", path)


def write_predictions(
    path: Path, named: Path, files: Sequence[tuple[str, int]], predicted: Iterable[np.ndarray]
) -> None:
    """Writes the probabilities of examples, in the order of files.

    Args:
        path: the file to write.
        named: the final name of the file, whose suffix decides the format.
        files: the name and the number of examples of each file.
        predicted: probabilities, float32 [n] each.
    """
    names, number, row = pa.array([name for name, _ in files]), 0, 0
    plain = not any(each in name for name, _ in files for each in '"\t,\r\n')
    with _writer(path, named, plain) as write:
        for probabilities in predicted:
            while row == files[number][1]:
                number, row = number + 1, 0
            places = pa.array(np.full(probabilities.size, number, np.int32))
            rows = pa.array(np.arange(row, row + probabilities.size))
            write([pa.DictionaryArray.from_arrays(places, names), rows, pa.array(probabilities)])
            row += probabilities.size


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _delimiter(path: Path) -> str | None:
    zipped = path.suffix.lower() == ".gz"
    return _DELIMITERS.get((path.with_suffix("") if zipped else path).suffix.lower())


@contextmanager
def _writer(path: Path, named: Path, plain: bool) -> Iterator[Callable[[list[pa.Array]], None]]:
    """A function that appends rows, given as columns. With `plain` names a text has no quotes."""
    if _is_parquet(named):
        with pq.ParquetWriter(path, _SCHEMA) as writer:
            yield lambda columns: writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
        return
    options = pa_csv.WriteOptions(delimiter=_delimiter(named), quoting_style="none" if plain else "needed")
    compression = "gzip" if named.suffix.lower() == ".gz" else None

    def table(columns: list[pa.Array]) -> pa.Table:
        return pa.Table.from_arrays([columns[0].dictionary_decode(), *columns[1:]], schema=_TEXT_SCHEMA)

    with (
        pa.output_stream(str(path), compression=compression) as stream,
        pa_csv.CSVWriter(stream, _TEXT_SCHEMA, write_options=options) as text,
    ):
        yield lambda columns: text.write_table(table(columns))
