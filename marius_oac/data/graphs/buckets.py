"""A graph's training edges sorted by bucket (`orderings`), in a separate folder. Memory is bounded for any number of
edges.

    edges.npy       the edges, of the graph's type: bucket (0, 0) first, then (0, 1), ...; in a bucket in graph order
    buckets.json    format, partitions, the graph's fingerprint, size and SHA-256 of the edges

The folder is made and checked by `derived`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from marius_oac.data.graphs.derived import DerivedArray, open_derived
from marius_oac.data.graphs.edge_ids import first_bad_edge
from marius_oac.data.graphs.negatives import as_kernel_input
from marius_oac.data.graphs.resident import Resident
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.runtime.files.npy import npy_header

FORMAT, VERSION = "marius_oac.buckets", 1
EDGES, MANIFEST = "edges.npy", "buckets.json"
CHUNK_BYTES = 16 << 20
"""Bytes of the edges that are sorted at once. Sorting takes twice as much memory, before any table is made."""


def partition_starts(num_nodes: int, partitions: int) -> np.ndarray:
    """The first node of each partition, and the number of nodes: int64 [P + 1]. Sizes differ by at most one."""
    return np.array([part * num_nodes // partitions for part in range(partitions + 1)], dtype=np.int64)


def count_buckets(edges: np.ndarray, num_nodes: int, partitions: int) -> np.ndarray:
    """The number of edges in each bucket, int64 [P, P] by the partitions of head and tail.

    Args:
        edges: int32 or int64 [E, 2 or 3], as `Graph.edges` gives them, ids in range.
    """
    counts = np.zeros(partitions * partitions, dtype=np.int64)
    plain, per_chunk, resident = as_kernel_input(edges), _edges_per_chunk(edges), Resident(edges, CHUNK_BYTES)
    for begin in range(0, len(plain), per_chunk):
        chunk = plain[begin : begin + per_chunk]
        numbers = np.empty(len(chunk), dtype=np.int64)
        _number_buckets(chunk, num_nodes, partitions, numbers, counts)
        resident.drop()
    return counts.reshape(partitions, partitions)


def open_buckets(
    folder: Path, edges: np.ndarray, counts: np.ndarray, num_nodes: int, num_relations: int, fingerprint: str
) -> np.ndarray:
    """The sorted edges in `folder`, int32 or int64 [E, 2 or 3], mapped read-only. They are sorted first if the folder
    is missing or damaged.

    Args:
        folder: holds only these files.
        edges: as `Graph.edges` gives them.
        counts: of `count_buckets`, int64 [P, P].
        fingerprint: the graph's.

    Raises:
        InputError: the disk is full, or can't be written.
    """
    wanted = {"format": FORMAT, "version": VERSION, "graph": fingerprint, "partitions": len(counts)}

    def make(temporary: Path) -> None:
        _sort(temporary / EDGES, edges, counts, num_nodes)

    def sound(found: np.ndarray) -> bool:
        return _is_sorted(found, counts, num_nodes, num_relations)

    array = DerivedArray(EDGES, (edges.dtype,), edges.shape)
    return open_derived(folder, MANIFEST, wanted, [array], make, "the edges are sorted again", sound)[0]


def _edges_per_chunk(edges: np.ndarray) -> int:
    return max(1, CHUNK_BYTES // (edges.itemsize * edges.shape[1]))


def _is_sorted(edges: np.ndarray, counts: np.ndarray, num_nodes: int, num_relations: int) -> bool:
    """Whether ids are in range, and each bucket has the right number of edges and no others."""
    found, per_chunk, resident = np.zeros(counts.size, np.int64), _edges_per_chunk(edges), Resident(edges, CHUNK_BYTES)
    plain, last = as_kernel_input(edges), -1
    for begin in range(0, len(plain), per_chunk):
        chunk = plain[begin : begin + per_chunk]
        if first_bad_edge(chunk, num_nodes, num_relations) >= 0:
            return False
        numbers = np.empty(len(chunk), dtype=np.int64)
        _number_buckets(chunk, num_nodes, len(counts), numbers, found)
        if numbers[0] < last or (np.diff(numbers) < 0).any():
            return False
        last = int(numbers[-1])
        resident.drop()
    return np.array_equal(found, counts.ravel())


def _sort(path: Path, edges: np.ndarray, counts: np.ndarray, num_nodes: int) -> None:
    """Counting sort: each chunk is sorted in memory, and its part of each bucket is appended to the bucket."""
    per_chunk, row_bytes = _edges_per_chunk(edges), edges.itemsize * edges.shape[1]
    plain, resident = as_kernel_input(edges), Resident(edges, CHUNK_BYTES)
    with open(path, "wb") as file:
        file.write(npy_header(edges.shape, edges.dtype))
        base = file.tell()
        flat = counts.ravel()
        places = np.concatenate(([0], np.cumsum(flat)[:-1]))
        file.truncate(base + len(edges) * row_bytes)
        for begin in range(0, len(plain), per_chunk):
            chunk = plain[begin : begin + per_chunk]
            numbers, found = np.empty(len(chunk), dtype=np.int64), np.zeros_like(flat)
            _number_buckets(chunk, num_nodes, len(counts), numbers, found)
            content = np.empty(chunk.shape, dtype=chunk.dtype)
            starts = np.concatenate(([0], np.cumsum(found)))
            _scatter(chunk, numbers, starts[:-1].copy(), content)
            for bucket in np.flatnonzero(found):
                file.seek(base + places[bucket] * row_bytes)
                file.write(content[starts[bucket] : starts[bucket + 1]].data)
            places += found
            resident.drop()


@compiled
def _number_buckets(
    edges: np.ndarray, num_nodes: int, partitions: int, numbers: np.ndarray, counts: np.ndarray
) -> None:
    """Writes each edge's bucket to `numbers`, int64 [E], and adds each bucket's edges to `counts`, int64 [P * P]."""
    last = edges.shape[1] - 1
    for i in range(edges.shape[0]):
        head, tail = np.int64(edges[i, 0]), np.int64(edges[i, last])
        # the partition that `partition_starts` puts a node into
        bucket = ((head + 1) * partitions - 1) // num_nodes * partitions + ((tail + 1) * partitions - 1) // num_nodes
        numbers[i] = bucket
        counts[bucket] += 1


@compiled
def _scatter(edges: np.ndarray, numbers: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    for i in range(numbers.size):
        place = places[numbers[i]]
        places[numbers[i]] += 1
        for column in range(edges.shape[1]):
            out[place, column] = edges[i, column]
