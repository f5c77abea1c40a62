"""Sampled neighbourhoods of a batch's nodes, layer by layer: message-flow graphs, or blocks, for a graph encoder
(Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017, Algorithm 2).

Guarantees: a sample is a pure function of (neighbours, fan-outs, seed, epoch, batch, seeds, excluded edges). A sampler
has no mutable state, so any number of threads may sample at once, in any order, and they rarely hold the GIL. A node's
neighbours in a layer depend only on (seed, epoch, batch, layer, node) and on which of its own edges are excluded. No
block has an excluded edge, in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from marius_oac.data.graphs.negatives import as_kernel_input
from marius_oac.data.graphs.resident import Resident
from marius_oac.data.neighbors.neighbors import Neighbors
from marius_oac.kernels.cpu.neighbors import ANY, draw_neighbors, fill_set, find_neighborhoods
from marius_oac.kernels.cpu.permutation import bit_length
from marius_oac.kernels.cpu.random import fold, stream_key, wrapping
from marius_oac.kernels.cpu.relabel import relabel_behind

_NONE = np.empty(0, dtype=np.int64)


class Block(NamedTuple):
    """One layer: messages from its input nodes to its output nodes, which are the first of the input nodes; int64.

    Attributes:
        offsets: [output nodes + 1]: output node i gets messages [offsets[i], offsets[i + 1]).
        sources: [messages], the local index of each message's input node; of a block that `draw` makes, the node.
        relations: [messages], or [0] if edges have no relations.
        edges: [messages], the number of each message's edge.
    """

    offsets: np.ndarray
    sources: np.ndarray
    relations: np.ndarray
    edges: np.ndarray


class Blocks(NamedTuple):
    """The layers of a batch.

    Attributes:
        layers: one per fan-out. The output nodes of each layer are the input nodes of the next, in the same order;
            those of the last layer are the seeds, in their order.
        rows: int64 [n], sorted unique ids of the first layer's input nodes.
        inputs: int64 [n]; `rows[inputs]` are the first layer's input nodes in their order.
    """

    layers: tuple[Block, ...]
    rows: np.ndarray
    inputs: np.ndarray


class NeighborSampler:
    """Draws neighbours uniformly without replacement.

    Args:
        neighbors: of `open_neighbors`.
        fanouts: neighbours per node and layer, -1 for all of them; the first layer, next to the rows, comes first.
        seed: of the run.
        most_bytes: of the neighbours' file that may be resident at a time; None: no limit.

    Raises:
        ValueError: there are no layers, or a fan-out is neither -1 nor at least 1.
    """

    def __init__(self, neighbors: Neighbors, fanouts: Sequence[int], seed: int, most_bytes: int | None = None) -> None:
        self._fanouts, self._num_nodes = checked_fanouts(fanouts), neighbors.num_nodes
        self._key = stream_key(seed, "neighbors")
        self._offsets, self._entries = _plain(neighbors.offsets), _plain(neighbors.entries)
        self._edges = as_kernel_input(neighbors.edges)
        self._resident = Resident(neighbors.entries, most_bytes)

    def most_rows(self, seeds: int) -> int:
        """The largest number of rows that the blocks of so many seeds can have."""
        return most_rows(self._fanouts, self._num_nodes, seeds)

    @wrapping
    def sample(self, seeds: np.ndarray, epoch: int, batch: int, excluded: np.ndarray = _NONE) -> Blocks:
        """The blocks of a batch.

        Args:
            seeds: int64 [n], the nodes to encode, all different, in any order.
            excluded: int64 [B], numbers of edges that must not be sampled: the batch's own.

        Raises:
            ValueError: seeds are no nodes of the graph, or not all different.
        """
        check_seeds(seeds, self._num_nodes)
        key, hidden = np.uint64(fold(np.uint64(fold(self._key, epoch)), batch)), self._hidden(excluded)
        nodes, layers, rows, places = seeds, [], seeds, seeds
        for layer in reversed(range(len(self._fanouts))):
            layer_key = np.uint64(fold(key, layer))
            ids, drawn = self._draw(layer_key, nodes, self._fanouts[layer], hidden)
            nodes, rows, places = relabel_behind(ids, len(nodes), self._num_nodes)
            layers.append(drawn)
        return Blocks(tuple(reversed(layers)), rows, places)

    @wrapping
    def draw(self, nodes: np.ndarray, fanout: int, key: np.uint64, excluded: np.ndarray = _NONE) -> Block:
        """One layer's neighbours of nodes, int64 [n], which are not checked, from the stream `key`."""
        return self._draw(np.uint64(key), nodes, fanout, self._hidden(excluded))[1]

    def _hidden(self, excluded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ends of excluded edges, and the edges' numbers, as sets. Few nodes of a batch are in the former."""
        ends = self._edges[excluded][:, :: self._edges.shape[1] - 1].ravel()
        return as_set(ends.astype(np.int64, copy=False)), as_set(excluded)

    def _draw(
        self, key: np.uint64, nodes: np.ndarray, fanout: int, hidden: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, Block]:
        """Returns the ids of the nodes followed by those of the neighbours, int64 [n + m], and the neighbours. Their
        block has a view of the ids, which relabelling in place gives the rows' numbers."""
        count = len(nodes)
        starts, degrees = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        most = int(find_neighborhoods(self._offsets, nodes, fanout, starts, degrees))
        ids, edges = np.empty(count + most, dtype=np.int64), np.empty(most, dtype=np.int64)
        relations = np.empty(most, dtype=np.int64) if self._entries.shape[1] == 3 else _NONE
        offsets, neighbors = np.empty(count + 1, dtype=np.int64), ids[count:]
        ids[:count], offsets[0] = nodes, 0
        per_part = max(1, self._resident.at_once // max(1, fanout))
        for first in range(0, count, per_part):
            part = slice(first, first + per_part)
            draw_neighbors(
                key, self._entries, nodes[part], starts[part], degrees[part], fanout, *hidden,
                offsets[first : first + per_part + 1], neighbors, relations, edges,
            )  # fmt: skip
            self._resident.touched(per_part * max(1, fanout))
        size = int(offsets[-1])
        return ids[: count + size], Block(offsets, neighbors[:size], relations[:size], edges[:size])


def checked_fanouts(fanouts: Sequence[int]) -> tuple[int, ...]:
    """The fan-outs as a tuple. Raises ValueError if there are none, or one is neither -1 nor at least 1."""
    if not fanouts or not all(fanout == ANY or 1 <= fanout < 1 << 31 for fanout in fanouts):
        raise ValueError(f"fan-outs are -1 or at least 1, one per layer, not {list(fanouts)}")
    return tuple(fanouts)


def check_seeds(seeds: np.ndarray, num_nodes: int) -> None:
    """Raises ValueError unless seeds are ids of nodes, int64 [n]."""
    if seeds.dtype != np.int64 or seeds.ndim != 1:
        raise ValueError(f"seeds must be int64 [n], not {seeds.dtype} {list(seeds.shape)}")
    if seeds.size and not 0 <= seeds.min() <= seeds.max() < num_nodes:
        raise ValueError(f"seeds must lie in 0 to {num_nodes - 1}")


def most_rows(fanouts: Sequence[int], num_nodes: int, seeds: int) -> int:
    """The largest number of rows that the blocks of so many seeds can have."""
    rows = seeds
    for fanout in fanouts:
        rows = num_nodes if fanout == ANY else rows * (1 + fanout)
    return min(num_nodes, rows)


@wrapping
def as_set(members: np.ndarray) -> np.ndarray:
    """An open-addressed set of integers >= 0, int64 [n], as an array int64 [a power of two, at least 2 n and 2]."""
    slots = np.full(1 << bit_length(max(1, 2 * members.size - 1)), -1, dtype=np.int64)
    fill_set(members, slots)
    return slots


def _plain(array: np.ndarray) -> np.ndarray:
    """A plain read-only view, so that kernels are compiled for one type."""
    plain = array.view(np.ndarray)
    plain.flags.writeable = False
    return plain
