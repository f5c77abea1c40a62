"""Predicts clicks for the examples of log files with the rows and the network of a model, without changing it.

A key that was never trained has the initial row of its key; such ids are counted. The file of predictions has columns
`file`, `row` (from 0) and `probability`; it is Parquet or text, by suffix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch

from marius_oac.batches import ClickBatch
from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.batches import table_indices, table_keys
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import BlockReader, LogFile
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.errors import InputError
from marius_oac.models.ctr.step import CtrStep
from marius_oac.runtime.progress import Progress
from marius_oac.tasks.ctr.distinct import DistinctIds
from marius_oac.types import map_arrays

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


class KeyedRows(Protocol):
    """Looks up rows by key without changing them: a `KeyTable`, or one on other nodes."""

    def look_up(
        self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `KeyTable.look_up`."""


class FileBlock(NamedTuple):
    """A block of a file's examples."""

    file: int
    number: int  # of the block in the file
    examples: int


class ClickPredictor:
    """Predicts probabilities of clicks with the present parameters of a model.

    Args:
        distinct: notes which ids are known to the model.
    """

    def __init__(
        self,
        config: CtrConfig,
        tables: Sequence[FeatureTable],
        key_tables: Sequence[KeyedRows],
        step: CtrStep,
        device: torch.device,
        distinct: DistinctIds | None = None,
    ):
        self._config, self._tables, self._key_tables = config, tables, key_tables
        self._step, self._device = step, device
        self.unknown_ids = 0
        self._distinct = distinct

    def files(self, files: Sequence[LogFile], labelled: bool) -> Iterator[tuple[LogBlock, np.ndarray]]:
        """Yields blocks of n examples of files, in order, with their probabilities, float32 [n]."""
        yield from self.blocks(files, self.cut(files), labelled)

    def cut(self, files: Sequence[LogFile]) -> list[FileBlock]:
        """The blocks of `evaluation.batch_size` examples that files are predicted in, in order."""
        size = self._config.evaluation.batch_size
        return [
            FileBlock(number, block, min(size, file.rows - block * size))
            for number, file in enumerate(files)
            for block in range(-(-file.rows // size))
        ]

    def blocks(
        self, files: Sequence[LogFile], blocks: Sequence[FileBlock], labelled: bool, shown: bool = True
    ) -> Iterator[tuple[LogBlock, np.ndarray]]:
        """As `files`, of some consecutive blocks of `cut`; `shown`: whether to show the progress."""
        size, total = self._config.evaluation.batch_size, sum(each.examples for each in blocks)
        with (
            BlockReader(files, self._config.data.unweighted, with_labels=labelled) as reader,
            Progress("predicting", "examples", total, shown) as progress,
        ):
            for each in blocks:
                examples = reader.block(each.file, each.number, size)
                yield examples, self.predict(examples)
                progress.add(examples.size)

    def predict(self, examples: LogBlock) -> np.ndarray:
        """Returns the probabilities of n examples, float32 [n]."""
        rows, tables = [], []
        for table, key_table in zip(self._tables, self._key_tables, strict=True):
            keys = table_keys(table, examples)
            values, local, unknown = key_table.look_up(*keys.asked)
            self.unknown_ids += int(np.count_nonzero(unknown))
            if self._distinct is not None:
                self._distinct.add(table, keys, unknown)
            rows.append(values)
            tables.append(table_indices(table, keys, local))
        data = ClickBatch(numbers=examples.numbers, tables=tuple(tables))
        if self._device.type == "cpu":
            return self._step.predict(rows, data)
        moved = map_arrays(data, lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(self._device))
        tensors = [torch.from_numpy(values).to(self._device) for values in rows]
        return self._step.predict(tensors, moved).cpu().numpy()
