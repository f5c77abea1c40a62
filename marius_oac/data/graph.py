"""A prepared graph, opened for reading: edges stay on disk, mapped; names are read where they are asked for."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marius_oac.data.download import default_cache_dir
from marius_oac.data.layout import FORMAT, MANIFEST, VERSION, fingerprint
from marius_oac.data.prepare import PrepareRequest, prepare
from marius_oac.data.registry import find_dataset, is_known
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError

Split = Literal["train", "valid", "test"]
NEAR_NAMES_LIMIT = 50_000  # comparing an unknown name with more than these would take seconds


@dataclass(frozen=True)
class Graph:
    """A graph folder (see `layout` for its files). Make it with `Graph.open`.

    Attributes:
        path: the folder.
        num_nodes: nodes have ids 0..num_nodes - 1.
        num_relations: likewise; 0 where edges have no relation.
        num_edges: edges of each split.
        fingerprint: equal exactly where the graphs' files are; a run records it.
        dtype: int32 or int64, of the edges.
    """

    path: Path
    num_nodes: int
    num_relations: int
    num_edges: Mapping[Split, int]
    fingerprint: str
    dtype: np.dtype

    @classmethod
    def open(cls, path: str | os.PathLike[str], verify: bool = True) -> Graph:
        """Open a graph folder.

        Args:
            verify: read every file through and compare its SHA-256 (about a second per GB); sizes and headers are
                always compared.

        Raises:
            InputError: names the file that is missing, damaged, foreign, or of a newer version.
        """
        folder = Path(path)
        manifest = _read_manifest(folder)
        try:
            counts = {split: int(manifest["edges"][split]) for split in SPLITS}
            nodes, relations = int(manifest["num_nodes"]), int(manifest["num_relations"])
            files: dict[str, Any] = manifest["files"]
            sizes = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
            needed = [f"{split}.npy" for split in SPLITS] + ["nodes.parquet"] + ["relations.parquet"] * (relations > 0)
            if not set(needed) <= set(sizes):
                raise KeyError(f"files: {', '.join(sorted(set(needed) - set(sizes)))}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"is damaged ({type(error).__name__}: {error})", folder / MANIFEST) from None
        for name in needed:
            _check_file(folder / name, *sizes[name], verify)
        columns = 3 if relations else 2
        arrays = {split: _map(folder / f"{split}.npy", (counts[split], columns)) for split in SPLITS}
        for table, count in (("nodes", nodes), ("relations", relations)):
            if count and (rows := _parquet_rows(folder / f"{table}.parquet")) != count:
                raise InputError(f"holds {rows:,} names, {count:,} are expected", folder / f"{table}.parquet")
        return cls(folder, nodes, relations, counts, fingerprint(files), arrays["train"].dtype)

    def edges(self, split: Split) -> np.ndarray:
        """The split's edges, [n, 3] (head, relation, tail) or [n, 2] (head, tail), `dtype`, mapped read-only."""
        return _map(self.path / f"{split}.npy", (self.num_edges[split], 3 if self.num_relations else 2))

    def node_names(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Names of nodes, in the order asked. Raises InputError for an id outside [0, num_nodes)."""
        return _names(self.path / "nodes.parquet", ids, self.num_nodes)

    def relation_names(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Names of relations, in the order asked. Raises InputError for an id outside [0, num_relations)."""
        return _names(self.path / "relations.parquet", ids, self.num_relations)

    def node_ids(self, names: Sequence[str]) -> np.ndarray:
        """Ids of nodes, int64 [len(names)]. Raises InputError for an unknown name, with the nearest known ones."""
        return _ids(self.path / "nodes.parquet", names, self.num_nodes, "node")

    def relation_ids(self, names: Sequence[str]) -> np.ndarray:
        """Ids of relations, int64 [len(names)]. Raises InputError for an unknown name, with the nearest known ones."""
        return _ids(self.path / "relations.parquet", names, self.num_relations, "relation")


def open_or_prepare(name_or_path: str | os.PathLike[str], cache_dir: Path | None = None) -> Graph:
    """Open a graph folder, or a data set that comes with this package, prepared on first use into `cache_dir`.

    Several processes may do so at once: each prepares in a folder of its own, and the first to end gives it its name.

    Raises:
        InputError: there is no such graph (says how to prepare it), or what `Graph.open` and `prepare` raise.
    """
    path = Path(name_or_path)
    if path.is_dir():
        return Graph.open(path)
    if path.exists():
        raise InputError(f"is a file; prepare it first: marius-oac prepare {path} --out FOLDER", path)
    if not is_known(str(name_or_path)) and (path.suffix or len(path.parts) > 1):
        raise InputError("no such graph folder", path)
    dataset = find_dataset(str(name_or_path))
    if not dataset.embedded:
        raise InputError(f"prepare it first: marius-oac prepare {dataset.name} --out FOLDER", dataset.name)
    cached = (cache_dir or default_cache_dir()) / "graphs" / f"{dataset.name}-v{VERSION}"
    if not cached.exists():
        try:
            prepare(PrepareRequest(source=dataset.name, out=cached))
        except InputError:
            if not cached.exists():  # else another process was faster, and its graph is the same
                raise
    return Graph.open(cached)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        reason = f"is not a graph folder: it has no {MANIFEST}" if folder.is_dir() else "no such graph folder"
        raise InputError(reason, folder) from None
    except (OSError, ValueError) as error:
        raise InputError(f"can't be read, or is damaged: {error}", path) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError("belongs to something else than a prepared graph", path)
    if content.get("version") != VERSION:
        raise InputError(
            f"format version {content.get('version')!r}, but this program reads version {VERSION}: "
            "prepare the graph again, or use the program that made it",
            path,
        )
    return content


def _check_file(path: Path, size: int, sha256: str, verify: bool) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            raise InputError(f"is damaged: {found:,} bytes, {size:,} are expected", path)
        if verify:
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise InputError("is damaged: its checksum differs from the one it was written with", path)
    except FileNotFoundError:
        raise InputError("is missing", path) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None


def _map(path: Path, shape: tuple[int, int]) -> np.ndarray:
    try:
        edges = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"can't be read: {error}", path) from None
    if edges.shape != shape or edges.dtype not in (np.int32, np.int64):
        raise InputError(f"holds {edges.dtype} {list(edges.shape)}; ids {list(shape)} are expected", path)
    return edges


def _parquet_rows(path: Path) -> int:
    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"is not a Parquet file: {error}", path) from None


def _names(path: Path, ids: Sequence[int] | np.ndarray, count: int) -> list[str]:
    """Reads the row groups that hold the ids, and no others."""
    wanted = np.asarray(ids, dtype=np.int64)
    outside = wanted[(wanted < 0) | (wanted >= count)]
    if len(outside):
        raise InputError(f"there is no id {outside[0]}: ids are 0 to {count - 1}", path.stem)
    names = np.empty(len(wanted), dtype=object)
    if not len(wanted):
        return []
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        groups = np.searchsorted(starts, wanted, side="right") - 1
        for group in np.unique(groups):
            at = np.flatnonzero(groups == group)
            column = file.read_row_group(int(group)).column("name")
            names[at] = column.take(pa.array(wanted[at] - starts[group])).to_pylist()
    return names.tolist()


def _ids(path: Path, names: Sequence[str], count: int, kind: str) -> np.ndarray:
    """Looks the names up batch by batch: memory holds a batch and the question, whatever the graph's size."""
    ids = np.full(len(names), -1, dtype=np.int64)
    if not count:
        raise InputError("this graph has no relations", kind)
    asked, inverse = np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)
    found = np.full(len(asked), -1, dtype=np.int64)
    question = pa.array(asked.tolist(), pa.string())
    start = 0
    with pq.ParquetFile(path, pre_buffer=False) as file:  # else the whole file would gather in memory
        for batch in file.iter_batches(columns=["name"]):
            hits = pc.index_in(batch.column("name"), value_set=question)
            at = np.flatnonzero(hits.is_valid().to_numpy(zero_copy_only=False))
            found[hits.take(pa.array(at)).to_numpy(zero_copy_only=False)] = start + at
            start += len(batch)
    ids = found[inverse]
    if (ids < 0).any():
        unknown = str(names[int(np.flatnonzero(ids < 0)[0])])
        raise InputError(f"unknown {kind} {unknown!r}{_nearest(path, unknown, count)}")
    return ids


def _nearest(path: Path, unknown: str, count: int) -> str:
    if count > NEAR_NAMES_LIMIT:
        return ""
    near = difflib.get_close_matches(unknown, pq.read_table(path).column("name").to_pylist(), n=3, cutoff=0.6)
    return f"; near: {', '.join(near)}" if near else ""
