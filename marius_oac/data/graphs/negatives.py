"""Negatives: nodes drawn uniformly, or in proportion to their degree in the training graph.

A uniformly drawn end of a uniformly drawn edge is a node drawn in proportion to its degree, so no table is needed.
Draws are independent: a node may be drawn twice, and may be the true answer.

Spans: runs of consecutive ids, from which a batch's edges and negatives are drawn.

Spans are an array int64 [2, n]: span k holds the ids `spans[0, k]`, `spans[0, k] + 1`, ..., and spans 0 to k together
hold `spans[1, k]` ids. (They are one array because calling a kernel with a tuple of arrays takes much longer.)
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import below, bits_at, wrapping


def spans_of(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The spans, int64 [2, m], with these first ids and lengths, int64 [n] each. Empty spans are left out."""
    kept = lengths > 0
    return np.stack([first[kept], np.cumsum(lengths[kept])])


def span_up_to(count: int) -> np.ndarray:
    """The single span 0 to count - 1, int64 [2, 1]."""
    return np.array([[0], [count]], dtype=np.int64)


@compiled
def located(spans: np.ndarray, position: int) -> int:
    """The id at `position` of spans int64 [2, n], 0 <= position < spans[1, -1]."""
    low, high = 0, spans.shape[1] - 1
    while low < high:
        middle = (low + high) >> 1
        if spans[1, middle] > position:
            high = middle
        else:
            low = middle + 1
    return spans[0, low] + position - (spans[1, low - 1] if low else 0)


def count_by_degree(count: int, degree_fraction: float) -> int:
    """The number of the `count` negatives that are drawn by degree, which come first."""
    return round(count * degree_fraction)


@wrapping
def draw_nodes(key: np.uint64, edges: np.ndarray, num_nodes: int, count: int, degree_fraction: float) -> np.ndarray:
    """Draws nodes from the stream `key` (see `random.stream_key`), int64 [count]: first by degree, then uniformly.

    Args:
        edges: training edges, int32 or int64 [E, 2] or [E, 3], C order; ends are the first and the last column.

    Raises:
        ValueError: nodes are drawn by degree, but there is no edge; as `as_kernel_input`.
    """
    by_degree = count_by_degree(count, degree_fraction)
    if by_degree and not len(edges):
        raise ValueError("nodes are drawn by degree, but there is no edge")
    out = np.empty((1, count), dtype=np.int64)
    plain = as_kernel_input(edges)
    fill_negatives(np.uint64(key), plain, span_up_to(len(plain)), span_up_to(num_nodes), by_degree, 0, out)
    return out[0]


def as_kernel_input(edges: np.ndarray) -> np.ndarray:
    """A plain read-only view of edges, so that kernels are compiled for two types only (int32, int64).

    Raises:
        ValueError: the edges are not int32 or int64 [E, 2] or [E, 3] in C order.
    """
    if edges.dtype not in (np.int32, np.int64) or edges.ndim != 2 or edges.shape[1] not in (2, 3):
        raise ValueError(f"edges must be int32 or int64 [E, 2] or [E, 3], not {edges.dtype} {list(edges.shape)}")
    if not edges.flags.c_contiguous:
        raise ValueError("edges must be in C order")
    plain = edges.view(np.ndarray)
    plain.flags.writeable = False
    return plain


@compiled
def fill_negatives(
    key: np.uint64,
    edges: np.ndarray,
    among: np.ndarray,
    nodes: np.ndarray,
    by_degree: int,
    first: int,
    out: np.ndarray,
) -> None:
    """Draws the negatives of groups: in each group the first `by_degree` by degree, the others uniformly.

    Args:
        key: of the stream; draw i of all groups uses the stream's number i.
        edges: int32 or int64 [E, 2] or [E, 3].
        among: int64 [2, n], spans (see `spans`) of the edges whose ends are drawn by degree.
        nodes: int64 [2, m], spans of the nodes that are drawn uniformly.
        first: the number of the first group, from 0.
        out: int64 [groups, K], filled here.
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
