"""A prepared graph, opened for reading. Edges are mapped from disk; names are read on demand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.data.graphs.edge_ids import check_ids
from marius_oac.data.graphs.given import GivenNegatives, check_metric, files_of, open_negatives
from marius_oac.data.graphs.names import check_names, ids_of, names_of
from marius_oac.data.layout import FORMAT, MANIFEST, VERSION, fingerprint
from marius_oac.data.reading.registry import EMBEDDED, dataset_of
from marius_oac.data.splits import SPLITS, Split
from marius_oac.errors import InputError, shown
from marius_oac.runtime.files.hashing import check_files
from marius_oac.runtime.files.untrusted import Count, Described, DescribedFile, FileName, check_file, read_json, typed
from marius_oac.runtime.files.untrusted_arrays import map_npy
from marius_oac.types import Side, present

TRAIN = "train.npy"
EVALUATED: tuple[Split, ...] = ("valid", "test")


@dataclass(frozen=True)
class Graph:
    """A graph folder (see `layout` for its files). Make it with `Graph.open`.

    Attributes:
        path: the folder.
        num_nodes: nodes have ids 0..num_nodes - 1.
        num_relations: relations have ids 0..num_relations - 1; 0: edges have no relation.
        num_edges: the number of edges of each split.
        fingerprint: equal exactly if the graphs' files are equal. A run records it.
        dtype: of the edges, int32 or int64.
        metric: what is computed with negatives that come with the graph, `mrr` or `hits@K`; None: none do.
        given: the files of these negatives of valid and test, as `files_of` names them.
    """

    path: Path
    num_nodes: int
    num_relations: int
    num_edges: Mapping[Split, int]
    fingerprint: str
    dtype: np.dtype
    metric: str | None = None
    given: Mapping[Split, Mapping[Side | None, str]] = field(default_factory=dict)
    _known: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str], verify: bool = True) -> Graph:
        """Opens a graph folder.

        Args:
            verify: read every file and compare its SHA-256 (half a second per GB, files at once). Sizes and headers
                are always compared.

        Raises:
            InputError: a file is missing, damaged, of another format, or of a newer version; names the file.
        """
        folder = Path(path)
        manifest = _read_manifest(folder)
        counts: dict[Split, int] = {split: getattr(manifest.edges, split) for split in SPLITS}
        nodes, relations = manifest.num_nodes, manifest.num_relations
        needed = [f"{split}.npy" for split in SPLITS] + ["nodes.parquet"] + ["relations.parquet"] * (relations > 0)
        metric = check_metric(manifest.negatives.metric, folder / MANIFEST) if manifest.negatives else None
        given = {split: files_of(metric, split, manifest.files) for split in EVALUATED} if metric else {}
        needed += [name for names in given.values() for name in names.values()]
        known = _state(folder / TRAIN)
        for name in needed:
            if name not in manifest.files:
                raise InputError(f"is damaged: files.{name} is missing", folder / MANIFEST)
            check_file(folder / name, manifest.files[name], verify=False)
        if verify:
            for error in check_files({folder / name: manifest.files[name] for name in needed}).values():
                raise error
        columns = 3 if relations else 2
        arrays = {split: _map(folder / f"{split}.npy", (counts[split], columns)) for split in SPLITS}
        check_names(folder / "nodes.parquet", nodes)
        if relations:
            check_names(folder / "relations.parquet", relations)
        digest = fingerprint({name: {"sha256": file.sha256} for name, file in manifest.files.items()})
        graph = cls(folder, nodes, relations, counts, digest, arrays["train"].dtype, metric, given, known)
        for split in given:
            graph.negatives(split)
        return graph

    def check_unchanged(self) -> None:
        """Raises InputError if the training edges were overwritten since the graph was opened. They are mapped, so what
        is read of them changes then; it does not where another file has taken their place."""
        path = self.path / TRAIN
        now = _state(path)
        if now[:2] != self._known[:2] or now == self._known:
            return
        if check_files({path: _read_manifest(self.path).files[TRAIN]}):
            raise InputError("has changed since the run began", path)
        object.__setattr__(self, "_known", now)  # it was touched, or written with the same content

    def edges(self, split: Split) -> np.ndarray:
        """The split's edges, int32 or int64 [n, 3] (head, relation, tail) or [n, 2] (head, tail), mapped read-only.

        All ids are checked when a split is opened for the first time.

        Raises:
            InputError: an id is out of range, or the file has changed.
        """
        path = self.path / f"{split}.npy"
        edges = _map(path, (self.num_edges[split], 3 if self.num_relations else 2))
        check_ids(edges, self.num_nodes, self.num_relations, path)
        return edges

    def negatives(self, split: Split) -> GivenNegatives:
        """The negatives that come with the graph for valid or test, where `metric` says that there are some. Raises
        InputError if a file has changed."""
        paths = {side: self.path / name for side, name in self.given[split].items()}
        return open_negatives(present(self.metric), paths, self.num_edges[split])

    def node_names(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """The names of nodes, in the order of `ids`. Raises InputError for an id outside [0, num_nodes)."""
        return names_of(self.path / "nodes.parquet", ids, self.num_nodes)

    def relation_names(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """The names of relations, in the order of `ids`. Raises InputError for an id outside [0, num_relations)."""
        return names_of(self.path / "relations.parquet", ids, self.num_relations)

    def node_ids(self, names: Sequence[str]) -> np.ndarray:
        """The ids of nodes, int64 [len(names)]. Raises InputError for an unknown name, with the most similar names."""
        return ids_of(self.path / "nodes.parquet", names, self.num_nodes, "node")

    def relation_ids(self, names: Sequence[str]) -> np.ndarray:
        """The ids of relations, int64 [len(names)]. Raises InputError for an unknown name, with similar names."""
        return ids_of(self.path / "relations.parquet", names, self.num_relations, "relation")


def open_graph(name_or_path: str | os.PathLike[str]) -> Graph:
    """Opens a graph folder, or the graph of a data set that comes with this package.

    Raises:
        InputError: there is no such graph (says how to prepare it); as `Graph.open`.
    """
    path = Path(name_or_path)
    if path.is_dir():
        return Graph.open(path)
    if path.exists():
        raise InputError(f"is a file; prepare it first: marius-oac prepare {path} --out FOLDER", path)
    return Graph.open(EMBEDDED / dataset_of(name_or_path).name / "graph")


class _Edges(Described):
    train: Count
    valid: Count
    test: Count


class _Negatives(Described):
    metric: str


class _Manifest(Described):
    """The fields of `graph.json` that are needed for reading."""

    num_nodes: Count
    num_relations: Count
    edges: _Edges
    files: dict[FileName, DescribedFile]
    negatives: _Negatives | None = None


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    try:
        content = read_json(path, dict[str, Any])
    except FileNotFoundError:
        reason = f"is not a graph folder: it has no {MANIFEST}" if folder.is_dir() else "no such graph folder"
        raise InputError(reason, folder) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    if content.get("format") != FORMAT:
        raise InputError("belongs to something else than a prepared graph", path)
    if content.get("version") != VERSION:
        raise InputError(
            f"format version {shown(content.get('version'))}, but this program reads version {VERSION}: "
            "prepare the graph again, or use the program that made it",
            path,
        )
    return typed(content, path, _Manifest)


def _state(path: Path) -> tuple[int, ...]:
    """Which file it is, its size and when it was written; nothing where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _map(path: Path, shape: tuple[int, int]) -> np.ndarray:
    return map_npy(path, (np.int32, np.int64), shape)
