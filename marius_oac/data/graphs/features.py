"""Features of nodes: a Parquet file that names nodes becomes an array by node id.

The file has the columns `name` and `features` (or `embedding`, as `marius-oac export` writes it), a list of 32- or
64-bit floats, and one row for every node of the graph. It is converted once, into a folder:

    features.npy     float32 [N, F], row i is node i's
    features.json    format, the graph's fingerprint, size and SHA-256 of the file and of the array

The folder is made and checked by `derived`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from marius_oac.data.graphs.derived import DerivedArray, open_derived
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.node_lookup import NodeLookup
from marius_oac.data.graphs.resident import Resident
from marius_oac.data.reading.edge_arrays import BATCH_ROWS
from marius_oac.data.reading.parquet_pages import parquet_batches, parquet_errors
from marius_oac.data.reading.readers import check_readable, checked_names
from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.npy import mapped_npy
from marius_oac.runtime.files.untrusted import Described, DescribedFile, read_json
from marius_oac.runtime.progress import Progress

FORMAT, VERSION = "marius_oac.features", 1
FEATURES, MANIFEST = "features.npy", "features.json"
COLUMNS = ("features", "embedding")
CHUNK_BYTES = 32 << 20
"""Bytes of features that are converted at once. Conversion takes a few times as much memory."""
_READ_BYTES = 1 << 20  # of a column, read at once; by default Arrow would hold a whole row group


class _Manifest(Described):
    features: DescribedFile = Field(alias=FEATURES)


def open_features(path: str | os.PathLike[str], graph: Graph, folder: Path) -> np.ndarray:
    """The features of a graph's nodes, float32 [N, F], mapped read-only. They are converted first if `folder` is
    missing, damaged or made from another file.

    Memory: a few `CHUNK_BYTES`, 1 byte per node, and the memory limit of `encode.connect`. Rows whose name is not in
    the graph are left out, with a warning.

    Args:
        path: the Parquet file, see above. Names may be integers.
        folder: holds only these features.

    Raises:
        InputError: the file can't be read, is damaged or has other columns; a node has no row or two rows; rows differ
            in length, or have a value that is no finite 32-bit float; the disk is full.
    """
    source = Path(path)
    check_readable(source)
    wanted = {"format": FORMAT, "version": VERSION, "graph": graph.fingerprint, "source": _digest(source)}

    def make(temporary: Path) -> None:
        _lay_out(_FeatureFile.open(source), graph, temporary)

    array = DerivedArray(FEATURES, (np.float32,), (graph.num_nodes, _FeatureFile.open(source).width))
    return open_derived(folder, MANIFEST, wanted, [array], make, "the features are laid out again")[0]


def features_fingerprint(folder: Path) -> str:
    """The fingerprint of the features in a folder of `open_features`. It is equal exactly if the features are."""
    return read_json(folder / MANIFEST, _Manifest).features.sha256


@dataclass(frozen=True)
class _FeatureFile:
    """A Parquet file of features whose schema was checked."""

    path: Path
    column: str
    rows: int
    width: int

    @classmethod
    def open(cls, path: Path) -> _FeatureFile:
        with parquet_errors(path), pq.ParquetFile(path, pre_buffer=False) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        column = next((name for name in COLUMNS if schema.names.count(name) == 1), None)
        if schema.names.count("name") != 1 or column is None:
            found = ", ".join(map(repr, schema.names[:10])) or "none"
            raise InputError(f"columns 'name' and 'features' (or 'embedding') are needed; there are {found}", path)
        kind = schema.field(column).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not lists or kind.value_type not in (pa.float32(), pa.float64()):
            raise InputError(f"column {column!r} holds {kind}: lists of 32- or 64-bit floats are needed", path)
        if not rows:
            raise InputError("the file has no features", path)
        return cls(path, column, rows, cls._width(path, column))

    @staticmethod
    def _width(path: Path, column: str) -> int:
        """The number of floats in the first row."""
        _, first = next(_batches(path, column, 1))
        width = pc.list_value_length(first)[0].as_py()
        if not width:
            raise InputError("row 1 has no features", path)
        return width

    def names(self) -> Iterator[pa.Array]:
        """All names, as strings."""
        for row, column in _batches(self.path, "name", BATCH_ROWS):
            yield checked_names(column, "name", row, self.path).cast(pa.string())

    def name(self, row: int) -> str:
        """The name in a row, counted from 0."""
        for first, column in _batches(self.path, "name", BATCH_ROWS):
            if row < first - 1 + len(column):
                return str(column[row - first + 1].as_py())
        raise InputError("was changed while it was read", self.path)

    def values(self) -> Iterator[np.ndarray]:
        """All features, float32 [n, width] at a time."""
        for row, column in _batches(self.path, self.column, max(1, CHUNK_BYTES // (8 * self.width))):
            yield self._checked(column, row)

    def _checked(self, column: pa.Array, first_row: int) -> np.ndarray:
        def refuse(at: int, reason: str) -> NoReturn:
            raise InputError(f"row {first_row + at} {reason}", self.path)

        if column.null_count:
            refuse(pc.index(pc.is_null(column), True).as_py(), "has no features")
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        for at in np.flatnonzero(lengths != self.width)[:1]:
            refuse(at, f"has {lengths[at]:,} features, those before have {self.width:,}")
        flat = column.flatten()
        if flat.null_count:
            at = pc.index(pc.is_null(flat), True).as_py()
            refuse(at // self.width, f"has no value for feature {at % self.width} (counted from 0)")
        found = flat.to_numpy(zero_copy_only=False).reshape(-1, self.width)
        with np.errstate(over="ignore"):  # what doesn't fit is infinite, and refused
            values = found.astype(np.float32, copy=False)
        for at, feature in np.argwhere(~np.isfinite(values))[:1]:
            which = f"{found[at, feature]} for feature {feature} (counted from 0)"
            refuse(at, f"has {which}: a finite 32-bit float is needed")
        return values


def _batches(path: Path, column: str, rows: int) -> Iterator[tuple[int, pa.Array]]:
    """Yields (number of the first row, counted from 1; at most `rows` rows of the column)."""
    first = 1
    with parquet_errors(path):
        for batch in parquet_batches(path, [column], rows, buffer_bytes=_READ_BYTES):
            yield first, batch.column(column)
            first += len(batch)


def _digest(path: Path) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": file.tell()}
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None


def _lay_out(file: _FeatureFile, graph: Graph, folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    ids = mapped_npy(work / "ids.npy", (file.rows,), np.int64)
    with NodeLookup(graph, work) as lookup:
        for names in file.names():
            lookup.add(names)
        lookup.find(ids)
    _check_rows(file, graph, ids)
    out = mapped_npy(folder / FEATURES, (graph.num_nodes, file.width), np.float32)
    resident, row = Resident(out, CHUNK_BYTES), 0
    at_once = max(1, CHUNK_BYTES // max(mmap.PAGESIZE, 4 * file.width))  # rows may lie on a page each
    with Progress(f"reading {file.path.name}", "nodes", file.rows) as progress:
        for values in file.values():
            nodes = ids[row : row + len(values)]
            order = np.argsort(nodes)  # so that pages are written one after the other
            order = order[np.searchsorted(nodes[order], 0) :]
            for start in range(0, len(order), at_once):
                part = order[start : start + at_once]
                out[nodes[part]] = values[part]
                resident.drop()
            row += len(values)
            progress.add(len(values))
    out.flush()
    shutil.rmtree(work)


def _check_rows(file: _FeatureFile, graph: Graph, ids: np.ndarray) -> None:
    """Refuses a node without a row or with two. Warns how many rows belong to no node."""
    seen, unknown, first_unknown = np.zeros(graph.num_nodes, np.bool_), 0, -1
    for start in range(0, len(ids), BATCH_ROWS):
        part = np.asarray(ids[start : start + BATCH_ROWS])
        if first_unknown < 0 and (part < 0).any():
            first_unknown = start + int(np.argmax(part < 0))
        unknown += int((part < 0).sum())
        row = _second_row(part, seen)
        if row >= 0:
            name = graph.node_names([part[row]])[0]
            earlier = int(np.argmax(ids == part[row]))
            where = f"row {start + row + 1}"
            raise InputError(f"{where}: node {name!r} has features already, in row {earlier + 1}", file.path)
        seen[part[part >= 0]] = True
    missing = graph.num_nodes - int(np.count_nonzero(seen))
    if missing:
        name = graph.node_names([int(np.argmin(seen))])[0]
        which = f"{missing:,} of the graph's {graph.num_nodes:,} nodes"
        raise InputError(f"{which} have no features: {name!r} for one", file.path)
    if unknown:
        name = file.name(first_unknown)
        which = f"{unknown:,} rows are left out, the graph has no such nodes: {name!r} for one"
        logger.warning(f"{file.path}: {which}")


def _second_row(ids: np.ndarray, seen: np.ndarray) -> int:
    """The first row whose node was seen before or has an earlier row here; -1: none. ids int64 [n], seen bool [N]."""
    order = np.argsort(ids, kind="stable")
    nodes = ids[order]
    again = (nodes >= 0) & seen[nodes]
    again[1:] |= (nodes[1:] >= 0) & (nodes[1:] == nodes[:-1])
    return int(order[again].min(initial=len(ids))) if again.any() else -1
