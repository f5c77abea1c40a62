"""Exports embeddings with their names, in common formats.

safetensors    embeddings.safetensors (a tensor per table), TABLE.names.parquet
npy            TABLE.npy (memory-mappable), TABLE.names.parquet
parquet        TABLE.parquet: `name`, `embedding` (a list of floats of fixed size), written in row groups

A model of clicks has a file more where the log has numeric columns: `numbers.json`, a list of their names and
transforms, as in the run's config.yaml. A row's name is `FEATURE=KEY`; the key of a bucket is its number, from 0.

Parquet is written by pyarrow itself: encoding takes most of the time (`benchmarks/disk`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import appearing, sync, write_flushed
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
    if os.path.lexists(out):
        raise InputError("exists already", out)
    with appearing(out) as temporary:
        temporary.mkdir()
        for name, text in texts.items():
            write_flushed(temporary / name, text.encode())
        for table, values in tables.items():
            file = f"{table}.parquet" if format == "parquet" else f"{table}.names.parquet"
            _write_parquet(temporary / file, values, names[table], embeddings=format == "parquet")
        if format == "npy":
            blocks = ({table: block} for table, values in tables.items() for block in _blocks(values))
            about = {table: (values.shape, values.dtype) for table, values in tables.items()}
            write_npy_files(temporary, about, blocks)
        if format == "safetensors":
            _write_safetensors(temporary / "embeddings.safetensors", tables)


def _blocks(values: RowArray) -> Iterator[np.ndarray]:
    for start in range(0, len(values), _ROWS):
        yield np.ascontiguousarray(values[start : start + _ROWS])


def _write_safetensors(path: Path, tables: Mapping[str, RowArray]) -> None:
    """The format's own library takes whole tensors in memory; its header is a line of JSON (safetensors, README)."""
    header, end = {}, 0
    for table, values in tables.items():
        header[table] = {"dtype": "F32", "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = {path: len(text).to_bytes(8, "little") + text}
    blocks = ({path: block} for values in tables.values() for block in _blocks(values))
    write_files([path], chain([start], blocks))


def _write_parquet(path: Path, values: RowArray, names: Names, embeddings: bool) -> None:
    width = values.shape[1]
    fields = [pa.field("name", pa.string())]
    if embeddings:
        fields.append(pa.field("embedding", pa.list_(pa.float32(), width)))
    schema = pa.schema(fields)
    with pq.ParquetWriter(path, schema) as writer:
        for number, block in enumerate(_blocks(values)):
            ids = np.arange(number * _ROWS, number * _ROWS + len(block))
            columns = [pa.array(names(ids), pa.string())]
            if embeddings:
                columns.append(pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), width))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    sync(path)
