"""Embeddings with their names, in formats that others read.

safetensors    embeddings.safetensors (a tensor per table), TABLE.names.parquet
npy            TABLE.npy (memory-mappable), TABLE.names.parquet
parquet        TABLE.parquet: `name`, `embedding` (a list of floats of fixed size), written in row groups
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from marius_oac.errors import InputError

Names = Callable[[np.ndarray], list[str]]
FORMATS = ("safetensors", "npy", "parquet")
_ROWS = 1 << 16


def export(tables: Mapping[str, np.ndarray], names: Mapping[str, Names], format: str, out: Path) -> None:
    """Writes the tables, float32 [rows, width] each, into the new folder `out`; all of it or nothing.

    `names[table](ids)` names rows; a table with more rows than names (reciprocal relations) has `^-1` behind the names
    of its second half. Safetensors are written through the page cache from the mapped table; the others in blocks.

    Raises:
        InputError: unknown format, `out` exists, or the disk is full.
    """
    if format not in FORMATS:
        raise InputError(f"one of {', '.join(FORMATS)} is needed, not {format!r}", "format")
    if os.path.lexists(out):
        raise InputError("exists already", out)
    temporary = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for table, values in tables.items():
            if format == "parquet":
                _write_parquet(temporary / f"{table}.parquet", values, names[table], embeddings=True)
                continue
            _write_parquet(temporary / f"{table}.names.parquet", values, names[table], embeddings=False)
            if format == "npy":
                _write_npy(temporary / f"{table}.npy", values)
        if format == "safetensors":
            save_file(
                {table: np.asarray(values) for table, values in tables.items()}, temporary / "embeddings.safetensors"
            )
        os.rename(temporary, out)
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", out) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_npy(path: Path, values: np.ndarray) -> None:
    target = np.lib.format.open_memmap(path, "w+", values.dtype, values.shape)
    for start in range(0, len(values), _ROWS):
        target[start : start + _ROWS] = values[start : start + _ROWS]
    target.flush()


def _write_parquet(path: Path, values: np.ndarray, names: Names, embeddings: bool) -> None:
    width = values.shape[1]
    fields = [pa.field("name", pa.string())]
    if embeddings:
        fields.append(pa.field("embedding", pa.list_(pa.float32(), width)))
    schema = pa.schema(fields)
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(values), _ROWS):
            block = np.ascontiguousarray(values[start : start + _ROWS])
            columns = [pa.array(_names(names, start, len(block), len(values)), pa.string())]
            if embeddings:
                columns.append(pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), width))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _names(names: Names, start: int, count: int, total: int) -> list[str]:
    ids = np.arange(start, start + count)
    try:
        return names(ids)
    except InputError:  # reciprocal: the second half of the rows are the relations reversed
        half = total // 2
        plain = names(ids % half)
        return [name + ("^-1" if row >= half else "") for row, name in zip(ids, plain, strict=True)]
