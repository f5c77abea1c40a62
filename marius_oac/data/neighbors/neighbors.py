"""The neighbours of a graph's nodes: its training edges sorted by node (compressed sparse rows), in a separate folder.
Memory is bounded for a graph of any size.

    offsets.npy      int64 [N + 1]: node v's entries are [offsets[v], offsets[v + 1])
    entries.npy      int32 or int64 [M, 2 or 3]: neighbour, relation if the graph has relations, number of the edge; the
                     entries of a node are sorted by edge number
    neighbors.json   format, direction, the graph's fingerprint and sizes, size and SHA-256 of the arrays

The numbers of an entry are adjacent, and int32 if they fit, so that drawing an entry costs one cache miss. The folder
is made and checked by `derived`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from marius_oac.data.graphs.derived import DerivedArray, open_derived
from marius_oac.data.graphs.negatives import as_kernel_input
from marius_oac.data.graphs.resident import Resident
from marius_oac.kernels.cpu.neighbors import (
    ascends,
    count_groups,
    count_nodes,
    group_records,
    in_range,
    make_records,
    scatter_entries,
)
from marius_oac.runtime.files.npy import mapped_npy
from marius_oac.runtime.progress import Progress

Direction = Literal["in", "out", "both"]
FORMAT, VERSION = "marius_oac.neighbors", 1
OFFSETS, ENTRIES, MANIFEST = "offsets.npy", "entries.npy", "neighbors.json"
_RECORDS, _NARROW = "records.npy", 1 << 31
CHUNK_BYTES = 32 << 20
"""Bytes of records that are sorted at once. Sorting takes about three times as much memory."""


@dataclass(frozen=True)
class Neighbors:
    """Neighbourhoods, opened with `open_neighbors`.

    Attributes:
        offsets: int64 [N + 1].
        entries: int32 or int64 [M, 2 or 3], see above. M is E, or 2 E of direction `both`.
        edges: int32 or int64 [E, 2 or 3], the graph's, as they were given.
        num_relations: the number of different relations of entries: R, or 2 R of direction `both`; 0: none.
    """

    offsets: np.ndarray
    entries: np.ndarray
    edges: np.ndarray
    num_relations: int

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.offsets) - 1


@dataclass(frozen=True)
class _Source:
    """What is sorted, and how."""

    edges: np.ndarray
    num_nodes: int
    num_relations: int
    direction: Direction

    def __post_init__(self) -> None:
        if self.direction not in get_args(Direction):
            raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}, not {self.direction!r}")
        if self.edges.shape[1] != (3 if self.num_relations else 2):
            raise ValueError(f"edges have {self.edges.shape[1]} columns, the graph {self.num_relations} relations")

    @property
    def ways(self) -> tuple[bool, bool]:
        """Whether edges are followed from their tails to their heads, and the other way round."""
        return self.direction != "out", self.direction != "in"

    @property
    def dtype(self) -> np.dtype:
        """int32 if every number of an entry fits: what is read at random is half as large."""
        largest = max(self.num_nodes, len(self.edges), self.num_relations * sum(self.ways))
        return np.dtype(np.int32 if largest <= _NARROW else np.int64)

    @property
    def num_entries(self) -> int:
        return len(self.edges) * sum(self.ways)

    @property
    def columns(self) -> int:
        return self.edges.shape[1]

    @property
    def group_nodes(self) -> int:
        """The number of consecutive nodes in a group. Their counts fit a chunk, and on average so do their entries."""
        entry_bytes = self.dtype.itemsize * self.columns
        groups = -(-max(self.num_entries * entry_bytes, self.num_nodes * 8) // CHUNK_BYTES)
        return -(-self.num_nodes // max(1, groups))

    def sound(self, offsets: np.ndarray, entries: np.ndarray) -> bool:
        """Whether all values that kernels use as indices are in range."""
        relations = [self.num_relations * sum(self.ways)] * (self.columns == 3)
        bounds = np.array([self.num_nodes, *relations, len(self.edges)], np.uint64)
        plain, resident = as_kernel_input(entries), Resident(entries, CHUNK_BYTES)
        per_chunk = max(1, CHUNK_BYTES // (entries.itemsize * self.columns))
        for begin in range(0, len(plain), per_chunk):
            if not in_range(plain[begin : begin + per_chunk], bounds):
                return False
            resident.drop()
        return ascends(offsets.view(np.ndarray), len(entries))

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (number of the first edge, edges [n, 2 or 3]); the records of n edges fill a chunk."""
        per_chunk = max(1, CHUNK_BYTES // (self.dtype.itemsize * (self.columns + 1) * sum(self.ways)))
        plain, resident = as_kernel_input(self.edges), Resident(self.edges, CHUNK_BYTES)
        for begin in range(0, len(plain), per_chunk):
            yield begin, plain[begin : begin + per_chunk]
            resident.drop()


def open_neighbors(
    folder: Path, edges: np.ndarray, num_nodes: int, num_relations: int, direction: Direction, fingerprint: str
) -> Neighbors:
    """The neighbours in `folder`, mapped read-only. They are gathered first if the folder is missing or damaged.

    Args:
        folder: holds only these files.
        edges: int32 or int64 [E, 2 or 3], as `Graph.edges` gives them, ids in range.
        direction: which edges make a node's neighbours. `in`: those that lead to the node; `out`: those that lead away
            from it; `both`: all of them, and the relation of those that lead away is r + R. A loop makes a node its own
            neighbour once, in `both` twice.
        fingerprint: the graph's.

    Raises:
        InputError: the disk is full, or can't be written.
        ValueError: edges or direction of another type or shape.
    """
    source = _Source(edges, num_nodes, num_relations, direction)
    wanted = {"format": FORMAT, "version": VERSION, "graph": fingerprint, "direction": direction}
    wanted |= {"nodes": num_nodes, "entries": source.num_entries, "relations": num_relations}

    def make(temporary: Path) -> None:
        with Progress("gathering neighbours", "steps", 3 * source.num_entries) as progress:
            _sort(temporary, source, progress)

    arrays = (
        DerivedArray(OFFSETS, (np.int64,), (num_nodes + 1,)),
        DerivedArray(ENTRIES, (source.dtype,), (source.num_entries, source.columns)),
    )
    again = "the neighbours are gathered again"
    offsets, entries = open_derived(folder, MANIFEST, wanted, arrays, make, again, source.sound)
    return Neighbors(offsets, entries, edges, num_relations * sum(source.ways))


def _sort(folder: Path, source: _Source, progress: Progress) -> None:
    """Counting sort in two passes: first edges become records, sorted by group; then each group becomes entries."""
    records = mapped_npy(folder / _RECORDS, (source.num_entries, source.columns + 1), source.dtype)
    starts = _write_records(source, records, progress)
    offsets = mapped_npy(folder / OFFSETS, (source.num_nodes + 1,), np.int64)
    entries = mapped_npy(folder / ENTRIES, (source.num_entries, source.columns), source.dtype)
    for group, first_node in enumerate(range(0, source.num_nodes, source.group_nodes)):
        end_node = min(first_node + source.group_nodes, source.num_nodes)
        found = _sort_group(records, starts[group], starts[group + 1], first_node, end_node, entries)
        offsets[first_node + 1 : end_node + 1] = found
        progress.add(int(starts[group + 1] - starts[group]))
    offsets.flush()
    entries.flush()
    (folder / _RECORDS).unlink()


def _write_records(source: _Source, out: np.ndarray, progress: Progress) -> np.ndarray:
    """Writes the records, sorted by group, to `out`. Returns where each group begins and the total, int64 [G + 1]."""
    groups = -(-source.num_nodes // source.group_nodes)
    counts = np.zeros(groups, dtype=np.int64)
    for _, edges in source.chunks():
        count_groups(edges, source.group_nodes, *source.ways, counts)
        progress.add(len(edges) * sum(source.ways))
    starts = np.concatenate(([0], np.cumsum(counts)))
    places, resident = starts[:-1].copy(), Resident(out, CHUNK_BYTES)
    for first, edges in source.chunks():
        records = np.empty((len(edges) * sum(source.ways), source.columns + 1), source.dtype)
        make_records(edges, first, source.num_relations, *source.ways, records)
        group_records(records, source.group_nodes, places, out.view(np.ndarray))
        resident.drop()
        progress.add(len(records))
    return starts


def _sort_group(
    records: np.ndarray, start: int, end: int, first_node: int, end_node: int, entries: np.ndarray
) -> np.ndarray:
    """Writes the entries of a group's nodes, whose records are [start, end), to the same places of `entries`. Returns
    where each node's entries end, int64 [nodes of the group].

    A group is larger than a chunk if one of its nodes is. The entries of a node are written in sequence, so dropping
    the pages in between costs little.
    """
    per_chunk = max(1, CHUNK_BYTES // (records.itemsize * records.shape[1]))
    plain, out = records.view(np.ndarray), entries.view(np.ndarray)
    maps = Resident(records, CHUNK_BYTES), Resident(entries, CHUNK_BYTES)
    counts = np.zeros(end_node - first_node, dtype=np.int64)
    for begin in range(start, end, per_chunk):
        count_nodes(plain[begin : min(begin + per_chunk, end)], first_node, counts)
        maps[0].drop()
    ends = start + np.cumsum(counts)
    places = ends - counts
    for begin in range(start, end, per_chunk):
        scatter_entries(plain[begin : min(begin + per_chunk, end)], first_node, places, out)
        for each in maps:
            each.drop()
    return ends
