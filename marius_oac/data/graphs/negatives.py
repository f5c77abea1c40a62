"""Negatives: nodes drawn uniformly, or in proportion to their degree in the training graph.

A uniformly drawn end of a uniformly drawn edge is a node drawn by degree, so there is no table to build or hold. Draws
are independent: a node may come twice, and may be the true answer.
"""

from __future__ import annotations

import numpy as np

from marius_oac.data.graphs.spans import located, span_up_to
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import below, bits_at, wrapping


def count_by_degree(count: int, degree_fraction: float) -> int:
    """How many of `count` negatives are drawn by degree: the first round(count * degree_fraction)."""
    return round(count * degree_fraction)


@wrapping
def draw_nodes(key: np.uint64, edges: np.ndarray, num_nodes: int, count: int, degree_fraction: float) -> np.ndarray:
    """Nodes drawn from the stream `key` (see `random.stream_key`), int64 [count]: first those by degree, then uniform.

    Args:
        edges: training edges, int32 or int64 [E, 2] or [E, 3], C order; ends are the first and the last column.
            E >= 1 where degree_fraction > 0.
    """
    by_degree = count_by_degree(count, degree_fraction)
    if by_degree and not len(edges):
        raise ValueError("nodes are drawn by degree, but there is no edge")
    out = np.empty((1, count), dtype=np.int64)
    plain = as_kernel_input(edges)
    fill_negatives(np.uint64(key), plain, span_up_to(len(plain)), span_up_to(num_nodes), by_degree, 0, out)
    return out[0]


def as_kernel_input(edges: np.ndarray) -> np.ndarray:
    """The same memory as a plain read-only array, so that kernels are compiled for two types only (int32, int64).

    Raises:
        ValueError: not int32 or int64 [E, 2] or [E, 3] in C order.
    """
    if edges.dtype not in (np.int32, np.int64) or edges.ndim != 2 or edges.shape[1] not in (2, 3):
        raise ValueError(f"edges must be int32 or int64 [E, 2] or [E, 3], not {edges.dtype} {list(edges.shape)}")
    if not edges.flags.c_contiguous:
        raise ValueError("edges must be in C order")
    plain = edges.view(np.ndarray)
    plain.flags.writeable = False
    return plain


@compiled
def fill_negatives(key, edges, among, nodes, by_degree, first, out):
    """Fills out, int64 [groups, K]: of each group the first `by_degree` by degree; number i uses bits i of `key`.

    `first` is the number of the first group, from 0.
    `among` and `nodes` are spans: of the edges whose ends are drawn by degree, and of the nodes drawn uniformly.
    """
    groups, count = out.shape
    last = edges.shape[1] - 1
    ends = 2 * among[1, -1]
    num_nodes = nodes[1, -1]
    for group in range(groups):
        start = (first + group) * count
        for k in range(by_degree):
            end = below(bits_at(key, start + k), ends)
            out[group, k] = edges[located(among, end >> 1), last if end & 1 else 0]
        for k in range(by_degree, count):
            out[group, k] = located(nodes, below(bits_at(key, start + k), num_nodes))
