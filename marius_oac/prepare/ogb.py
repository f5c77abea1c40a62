"""Sets of the Open Graph Benchmark (OGB) for link prediction, from the files that its package downloads; see Hu et al.,
"Open Graph Benchmark: datasets for machine learning on graphs", NeurIPS 2020.

Ids of nodes and relations stay OGB's. In a set with types of nodes (`typed`) those of a type follow one another, types
in the order of their names, and a node is called TYPE:NUMBER. Nothing is drawn, moved or left out, and edges that stand
there twice are not counted.

| kind | what `split/*/{train,valid,test}.pt` hold: dicts of arrays |
|---|---|
| `triples` | `head`, `relation`, `tail` [E]; valid and test `head_neg`, `tail_neg` [E, K] |
| `typed` | the same, ids counted within a type, with `head_type`, `tail_type`: E texts |
| `sources` | `source_node`, `target_node` [E]; valid and test `target_node_neg` [E, K] |
| `pairs` | `edge` [E, 2]; valid and test `edge_neg` [n, 2], which all of a split's edges share |
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from marius_oac.data.layout import EDGE_NEGATIVES, HEAD_NEGATIVES, TAIL_NEGATIVES, write_names
from marius_oac.data.reading.registry import NODE_COUNTS, Kind
from marius_oac.data.reading.text import read_pieces
from marius_oac.data.reading.torch_file import TorchFile, read_torch_file
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError
from marius_oac.prepare.assemble import INT32_IDS, Counts
from marius_oac.runtime.files.npy import GrowingNpyWriter
from marius_oac.runtime.progress import Progress

CHUNK_IDS = 1 << 21
_MOST_TEXT = 1 << 16  # bytes of the file of nodes' counts
_ENDS = {"triples": ("head", "tail"), "typed": ("head", "tail"), "sources": ("source_node", "target_node")}
_NEGATIVES = {
    "triples": {HEAD_NEGATIVES: "head_neg", TAIL_NEGATIVES: "tail_neg"},
    "typed": {HEAD_NEGATIVES: "head_neg", TAIL_NEGATIVES: "tail_neg"},
    "sources": {TAIL_NEGATIVES: "target_node_neg"},
    "pairs": {EDGE_NEGATIVES: "edge_neg"},
}


def write_ogb(kind: Kind, files: Mapping[str, Path], folder: Path, work: Path) -> Counts:
    """Writes the files of a graph folder except its manifest.

    Args:
        files: of the splits, and of the numbers of nodes.
        work: an existing folder for copies of arrays.

    Raises:
        InputError: a file is damaged, lacks an array, or has one of another type or shape; an id is out of range; a
            split has no edges.
    """
    nodes = _Nodes.read(files[NODE_COUNTS], typed=kind == "typed")
    counts = Counts(num_nodes=nodes.count)
    for split in SPLITS:
        edges = _Edges(kind, nodes, read_torch_file(files[split], work))
        if split == "train":
            counts.num_relations = edges.num_relations()
            if nodes.count > 2 * edges.count:
                what = f"{nodes.count:,} nodes, but the {edges.count:,} edges of train have fewer ends"
                raise InputError(what, files[NODE_COUNTS])
        counts.edges[split] = edges.write(folder / f"{split}.npy", counts.num_relations)
        if split != "train":
            for name, key in _NEGATIVES[kind].items():
                edges.write_negatives(key, folder / name.format(split))
        del edges  # and the copy of its arrays on the disk
    write_names(folder / "nodes.parquet", nodes.names())
    if counts.num_relations:
        write_names(folder / "relations.parquet", _numbers(counts.num_relations))
    return counts


@dataclass(frozen=True)
class _Nodes:
    """The numbers of nodes by type; a set without types has one without a name."""

    counts: Mapping[str, int]

    @classmethod
    def read(cls, path: Path, typed: bool) -> _Nodes:
        """Without types the file holds one number, else a line of types and one of numbers."""
        text = next(read_pieces(path, _MOST_TEXT), b"")
        try:
            rows = list(csv.reader(text.decode().splitlines()))
            names, numbers = (rows[0], rows[1]) if typed else ([""], rows[0])
            counts = {name: int(number) for name, number in zip(names, numbers, strict=True)}
            if (
                len(rows) != 1 + typed
                or len(counts) != len(names)
                or not all(0 < n <= INT32_IDS for n in counts.values())
            ):
                raise ValueError
        except (ValueError, IndexError, csv.Error):
            what = "a line of types and a line with the number of nodes of each" if typed else "the number of nodes"
            raise InputError(f"{what} is expected, each from 1 to {INT32_IDS:,}", path) from None
        return cls(dict(sorted(counts.items())))

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def names(self) -> Iterator[pa.Array]:
        for name, count in self.counts.items():
            yield from _numbers(count, f"{name}:" if name else "")

    def ranges(self, file: TorchFile, end: str, count: int) -> np.ndarray:
        """Where the ids of each edge's type begin at this end, and how many there are: int64 [2, E]."""
        begins = np.cumsum([0, *self.counts.values()]).tolist()
        known = {name: number for number, name in enumerate(self.counts)}
        names, numbers = file.texts(f"{end}_type", count)
        if unknown := next((name for name in names if name not in known), None):
            raise InputError(f"{end}_type: there are no nodes of type {unknown!r}", file.path)
        types = np.array([known[name] for name in names], np.int64)[numbers]
        return np.array([begins[:-1], list(self.counts.values())])[:, types]


class _Edges:
    """The edges of a split."""

    def __init__(self, kind: Kind, nodes: _Nodes, file: TorchFile) -> None:
        self._nodes, self._file, self._relations = nodes, file, None
        self._ranges: dict[str, np.ndarray] = {}
        if kind == "pairs":
            pairs = file.integers("edge", (None, 2))
            self._ends = {"edge": pairs[:, 0], "edge ": pairs[:, 1]}
            self.count = len(pairs)
        else:
            first, last = _ENDS[kind]
            self._ends = {first: file.integers(first, (None,))}
            self.count = len(self._ends[first])
            self._ends[last] = file.integers(last, (self.count,))
        if not self.count:
            raise InputError("there are no edges", file.path)
        if kind in ("triples", "typed"):
            self._relations = file.integers("relation", (self.count,))
        if kind == "typed":
            self._ranges = {end: nodes.ranges(file, end, self.count) for end in self._ends}

    def num_relations(self) -> int:
        """Of train: one more than the largest number; 0: there are none."""
        if self._relations is None:
            return 0
        most = max(int(self._relations[first : first + CHUNK_IDS].max()) for first in range(0, self.count, CHUNK_IDS))
        if most >= self.count:
            raise InputError(f"'relation' has the number {most:,}, and there are {self.count:,} edges", self._file.path)
        return most + 1

    def write(self, path: Path, num_relations: int) -> int:
        """Writes the edges, [E, 3] or [E, 2]; returns their number."""
        columns = 2 if self._relations is None else 3
        with GrowingNpyWriter(path, columns, self._dtype) as writer, self._progress("edges", self.count) as progress:
            for first in range(0, self.count, CHUNK_IDS // columns):
                part = slice(first, first + CHUNK_IDS // columns)
                ids = [self._ids(name.strip(), numbers[part, None], part)[:, 0] for name, numbers in self._ends.items()]
                if self._relations is not None:
                    relations = self._relations[part].astype(np.int64)
                    self._check("relation", relations[:, None], num_relations, first, "relations")
                    ids.insert(1, relations)
                writer.append(np.stack(ids, 1))
                progress.add(len(ids[0]))
        return self.count

    def write_negatives(self, key: str, path: Path) -> None:
        """Writes the negatives of this name, [E, K], or [n, 2] of pairs."""
        pairs = key == "edge_neg"
        found = self._file.integers(key, (None, 2) if pairs else (self.count, None))
        rows, columns = found.shape
        if not found.size:
            raise InputError(f"{key!r} is empty", self._file.path)
        with GrowingNpyWriter(path, columns, self._dtype) as writer, self._progress("negatives", rows) as progress:
            step = max(1, CHUNK_IDS // columns)
            for first in range(0, rows, step):
                ids = self._ids(key, found[first : first + step], slice(first, first + step))
                writer.append(ids)
                progress.add(len(ids))

    def _ids(self, name: str, numbers: np.ndarray, part: slice) -> np.ndarray:
        """The ids of nodes of these edges, int64 [n, k], from their numbers. Raises InputError if one is out of
        range."""
        numbers = numbers.astype(np.int64)  # of uint64 and int64 NumPy would make floats
        ranges = self._ranges.get(name.removesuffix("_neg"))
        if ranges is None:
            self._check(name, numbers, self._nodes.count, part.start, "nodes")
            return numbers
        begins, counts = ranges[:, part, None]
        self._check(name, numbers, counts, part.start, "nodes of its type")
        return numbers + begins

    def _check(self, name: str, numbers: np.ndarray, limits: int | np.ndarray, first: int, what: str) -> None:
        wrong = (numbers < 0) | (numbers >= limits)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            limit = limits if isinstance(limits, int) else int(limits[row, 0])
            found = f"{name!r}: row {first + row} (from 0) has the number {int(numbers[row, column])}"
            raise InputError(f"{found}, but there are {limit:,} {what}", self._file.path)

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype(np.int32 if self._nodes.count <= INT32_IDS else np.int64)

    def _progress(self, unit: str, count: int) -> Progress:
        return Progress(f"reading {self._file.path.name}", unit, count)


def _numbers(count: int, before: str = "") -> Iterator[pa.Array]:
    """The names of so many nodes or relations: their numbers."""
    numbers = iter(range(count))
    while part := list(islice(numbers, 1 << 17)):
        yield pa.array([f"{before}{number}" for number in part], pa.string())
