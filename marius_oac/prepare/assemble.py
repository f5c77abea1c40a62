"""The last steps of preparing a graph, on integer ids: repetitions, splits, names that train lacks, and the files.

Edges are read twice, in chunks: first to find the names that the given or drawn train has, then to write the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from marius_oac.data.layout import write_names
from marius_oac.data.splits import SPLITS, DrawnSplits, GivenSplits
from marius_oac.errors import InputError
from marius_oac.prepare.copies import CopiesOfTrain
from marius_oac.prepare.encode import Encoder
from marius_oac.prepare.repetitions import Repetitions
from marius_oac.runtime.files.npy import GrowingNpyWriter, mapped_npy
from marius_oac.runtime.progress import Progress

CHUNK_EDGES = 1 << 20
INT32_IDS = 1 << 31  # ids below this fit int32


@dataclass
class Counts:
    """Counts of what was written and what was left out.

    Attributes:
        edges: the number of edges written for each split.
        duplicates: the number of edges that equal an earlier one, kept or dropped as requested; 0 for OGB's sets, where
            they are not counted.
        unseen_edges: the number of edges given or drawn for valid and test with an entity or relation that train
            lacked. With `unseen` "train" only those that went there are such, the others have all in train then.
        unseen_nodes, unseen_relations: the number of such entities and relations.
        copies: the number of edges of valid and test that equal an edge of train.
        copy: the names in one of these, or None.
    """

    num_nodes: int = 0
    num_relations: int = 0
    edges: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    duplicates: int = 0
    unseen_edges: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS[1:], 0))
    unseen_nodes: int = 0
    unseen_relations: int = 0
    copies: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS[1:], 0))
    copy: str | None = None


class RawEdges:
    """Edges as ids of all names, in reading order, in a file of the work folder. Repetitions may be marked."""

    def __init__(self, encoder: Encoder, work: Path, drop_duplicates: bool) -> None:
        self.columns = len(encoder.columns)
        widest = max(encoder.count(table) for table in encoder.tables)
        self.dtype = np.dtype(np.int32 if widest <= INT32_IDS else np.int64)
        self._path = work / "edges.bin"
        self.rows = encoder.rows
        with open(self._path, "wb") as file, Progress("joining ids", "edges", self.rows) as progress:
            for edges in encoder.edges():
                file.write(np.ascontiguousarray(edges, dtype=self.dtype).data)
                progress.add(len(edges))
        self._dropped: np.ndarray | None = None
        if drop_duplicates:
            self._dropped = mapped_npy(work / "dropped.npy", (self.rows,), np.bool_)
        self.copies = CopiesOfTrain(work, self.rows)
        self.duplicates = 0
        for pairs in Repetitions(self._path, self.rows, self.columns, self.dtype, work).pairs():
            self.duplicates += len(pairs)
            if self._dropped is None:
                self.copies.add(pairs)
            else:
                self._dropped[pairs[:, 1]] = True

    @property
    def kept_rows(self) -> int:
        """The number of edges that are kept."""
        return self.rows if self._dropped is None else self.rows - self.duplicates

    def edge(self, number: int) -> np.ndarray:
        """One edge, [columns], by its number as read."""
        return np.memmap(self._path, self.dtype, "r", shape=(self.rows, self.columns))[number]

    def chunks(self, over_kept: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (edges, int32 or int64 [n, columns]; their numbers, int64 [n]). The caller may change the arrays.

        Args:
            over_kept: count only the kept edges; else the numbers are those of all edges as read.
        """
        kept = 0
        with open(self._path, "rb") as file:
            for start in range(0, self.rows, CHUNK_EDGES):
                rows = min(CHUNK_EDGES, self.rows - start)
                edges = np.fromfile(file, self.dtype, rows * self.columns).reshape(rows, self.columns)
                numbers = np.arange(start, start + rows)
                if self._dropped is not None:
                    keep = ~self._dropped[start : start + rows]
                    edges, numbers = edges[keep], numbers[keep]
                yield edges, np.arange(kept, kept + len(edges)) if over_kept else numbers
                kept += len(edges)


class Assembler:
    """Writes the files of a graph folder except its manifest.

    Args:
        unseen: "train", "skip", "error" or "keep", see `prepare.PrepareRequest`.
    """

    def __init__(self, encoder: Encoder, raw: RawEdges, splits: GivenSplits | DrawnSplits, unseen: str) -> None:
        self._encoder, self._raw, self._splits, self._unseen = encoder, raw, splits, unseen
        self._nodes = np.zeros(encoder.count("nodes"), dtype=np.bool_)
        self._relations = np.zeros(encoder.count("relations") if raw.columns == 3 else 0, dtype=np.bool_)
        self._seen = [(self._nodes, [0, -1]), (self._relations, [1])][: raw.columns - 1]  # and where such ids stand

    def write(self, folder: Path) -> Counts:
        """Writes the files and returns the counts.

        Raises:
            InputError: no edge is left to train on; with `unseen` "error", an edge has a name that train lacks.
        """
        counts = Counts(duplicates=self._raw.duplicates)
        with Progress("finding the names in train", "edges", self._raw.kept_rows) as progress:
            for edges, _, split in self._chunks():
                self._see(edges[split == 0])
                progress.add(len(edges))
        if self._unseen != "train" and not self._nodes.any():
            raise InputError("no edge is left to train on")
        counts.unseen_nodes = int((~self._nodes).sum())
        counts.unseen_relations = int((~self._relations).sum())
        self._write_edges(folder, counts)
        keep = self._unseen == "keep"
        counts.num_nodes = len(self._nodes) if keep else int(self._nodes.sum())
        counts.num_relations = len(self._relations) if keep else int(self._relations.sum())
        for table, seen in zip(self._encoder.tables, (self._nodes, self._relations), strict=False):
            write_names(folder / f"{table}.parquet", self._names(table, seen | keep))
        counts.copies, example = self._raw.copies.count()
        if example is not None:
            counts.copy = " ".join(self._named(self._raw.edge(example)))
        return counts

    def _chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for edges, numbers in self._raw.chunks(self._splits.over_kept):
            yield edges, numbers, self._splits.of(numbers)

    def _see(self, edges: np.ndarray) -> None:
        for seen, columns in self._seen:
            seen[edges[:, columns]] = True

    def _known(self, edges: np.ndarray) -> np.ndarray:
        return np.logical_and.reduce([seen[edges[:, columns]].all(1) for seen, columns in self._seen])

    def _move(self, edges: np.ndarray, split: np.ndarray) -> np.ndarray:
        """Moves to train, in reading order, each edge with a name that train lacks until then. Returns which, bool [n].

        Such are those that have the first occurrence of a lacking name: an edge before them with it would have moved.
        """
        moved = np.zeros(len(edges), np.bool_)
        for seen, columns in self._seen:
            lacking = np.flatnonzero(~seen[edges[:, columns]].all(1))
            names, first = np.unique(edges[lacking][:, columns], return_index=True)
            moved[lacking[first[~seen[names]] // len(columns)]] = True
        split[moved] = 0
        self._see(edges[moved])
        return moved

    def _write_edges(self, folder: Path, counts: Counts) -> None:
        keep = self._unseen in ("keep", "train")
        node_ids, relation_ids = (_compact(seen | keep, self._raw.dtype) for seen in (self._nodes, self._relations))
        with ExitStack() as stack:
            progress = stack.enter_context(Progress("writing", "edges", self._raw.kept_rows))
            paths = [folder / f"{split}.npy" for split in SPLITS]
            columns, dtype = self._raw.columns, self._raw.dtype
            writers = [stack.enter_context(GrowingNpyWriter(path, columns, dtype)) for path in paths]
            for edges, numbers, drawn in self._chunks():
                split = drawn.copy()
                unseen = self._move(edges, split) if self._unseen == "train" else ~self._known(edges)
                for index in (1, 2):
                    those = (drawn == index) & unseen
                    if self._unseen == "error" and those.any():
                        self._refuse(SPLITS[index], edges[those][0])
                    counts.unseen_edges[SPLITS[index]] += int(those.sum())
                self._raw.copies.tell(numbers, split)
                edges[:, 0], edges[:, -1] = node_ids[edges[:, 0]], node_ids[edges[:, -1]]
                if self._raw.columns == 3:
                    edges[:, 1] = relation_ids[edges[:, 1]]
                for index, writer in enumerate(writers):
                    writer.append(edges[(split == index) & (~unseen | keep)])
                progress.add(len(edges))
            counts.edges = {split: writer.rows for split, writer in zip(SPLITS, writers, strict=True)}

    def _named(self, edge: np.ndarray) -> list[str]:
        """The names in an edge, [columns]."""
        return [self._encoder.name(table, int(value)) for table, value in zip(_tables(edge), edge, strict=True)]

    def _refuse(self, split: str, edge: np.ndarray) -> None:
        tables, names = _tables(edge), self._named(edge)
        seen = {"nodes": self._nodes, "relations": self._relations}
        column = next(index for index, table in enumerate(tables) if not seen[table][edge[index]])
        raise InputError(
            f"{tables[column][:-1]} {names[column]!r} never occurs in train (edge: {' '.join(names)}); "
            "skipping unseen names would leave such edges out",
            split,
        )

    def _names(self, table: str, keep: np.ndarray) -> Iterator[pa.Array]:
        start = 0
        for names in self._encoder.names(table):
            yield names.filter(pa.array(keep[start : start + len(names)]))
            start += len(names)


def _tables(edge: np.ndarray) -> tuple[str, ...]:
    """The table of the names in each column of an edge."""
    return ("nodes", "relations", "nodes") if len(edge) == 3 else ("nodes", "nodes")


def _compact(keep: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The new ids of those to keep, in the old order. Those of the others are never used."""
    return np.cumsum(keep, dtype=np.int64).astype(dtype) - dtype.type(1)
