"""Exports embeddings with their names, in common formats.

safetensors    embeddings.safetensors (a tensor per table), TABLE.names.parquet
npy            TABLE.npy (memory-mappable), TABLE.names.parquet
parquet        TABLE.parquet: `name`, `embedding` (a list of floats of fixed size), written in row groups

A model of clicks has a file more where the log has numeric columns: `numbers.json`, a list of their names and
transforms, as in the run's config.yaml. A row's name is `FEATURE=KEY`; the key of a bucket is its number, from 0.

Names and numbers are written side by side. Parquet is written by pyarrow itself: encoding takes most of the time
(`benchmarks/disk`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import appearing, check_place, sync, write_flushed
from marius_oac.runtime.files.hashing import on_threads
from marius_oac.runtime.files.streaming import write_files, write_npy_files
from marius_oac.storage.snapshots import RowArray

Names = Callable[[np.ndarray], list[str]]
FORMATS = ("safetensors", "npy", "parquet")
_ROWS = 1 << 16


def export(
    tables: Mapping[str, RowArray],
    names: Mapping[str, Names],
    format: str,
    out: Path,
    texts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Writes tables, float32 [rows, width], into the new folder `out`, in bounded memory; all of it or nothing.

    `names[table](ids)` names rows; `texts` are further files, by name.

    Raises:
        InputError: unknown format, `out` exists, or the disk is full.
    """
    if format not in FORMATS:
        raise InputError(f"one of {', '.join(FORMATS)} is needed, not {format!r}", "format")
    check_place(out)
    if os.path.lexists(out):
        raise InputError("exists already", out)
    with appearing(out) as temporary:
        temporary.mkdir()
        for name, text in texts.items():
            write_flushed(temporary / name, text.encode())
        whole = format == "parquet"
        ending = "parquet" if whole else "names.parquet"
        # Numbers first: they take longest.
        numbers = [partial(_NUMBERS[format], temporary, tables)] if format in _NUMBERS else []
        rows = [
            partial(_write_parquet, temporary / f"{table}.{ending}", values, names[table], whole)
            for table, values in tables.items()
        ]
        on_threads(lambda write, go_on: write(go_on), [*numbers, *rows])


def _blocks(values: RowArray, go_on: Callable[[], None]) -> Iterator[np.ndarray]:
    for start in range(0, len(values), _ROWS):
        go_on()
        yield np.ascontiguousarray(values[start : start + _ROWS])


def _write_npy(folder: Path, tables: Mapping[str, RowArray], go_on: Callable[[], None]) -> None:
    about = {table: (values.shape, values.dtype) for table, values in tables.items()}
    blocks = ({table: block} for table, values in tables.items() for block in _blocks(values, go_on))
    write_npy_files(folder, about, blocks)


def _write_safetensors(folder: Path, tables: Mapping[str, RowArray], go_on: Callable[[], None]) -> None:
    """The format's own library takes whole tensors in memory; its header is a line of JSON (safetensors, README)."""
    header, end = {}, 0
    for table, values in tables.items():
        header[table] = {"dtype": "F32", "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "embeddings.safetensors"
    start = {path: len(text).to_bytes(8, "little") + text}
    blocks = ({path: block} for values in tables.values() for block in _blocks(values, go_on))
    write_files([path], chain([start], blocks))


_NUMBERS = {"npy": _write_npy, "safetensors": _write_safetensors}
"""What writes the numbers of all tables into a folder, where names have files of their own."""


def _write_parquet(path: Path, values: RowArray, names: Names, embeddings: bool, go_on: Callable[[], None]) -> None:
    width = values.shape[1]
    fields = [pa.field("name", pa.string())]
    if embeddings:
        fields.append(pa.field("embedding", pa.list_(pa.float32(), width)))
    schema = pa.schema(fields)
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(values), _ROWS):
            go_on()
            columns = [pa.array(names(np.arange(start, min(start + _ROWS, len(values)))), pa.string())]
            if embeddings:
                block = np.ascontiguousarray(values[start : start + _ROWS])
                columns.append(pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), width))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    sync(path)
