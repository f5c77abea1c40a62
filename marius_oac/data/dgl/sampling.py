"""Neighbourhoods sampled by dgl, with the contract of `data.neighbors.sampling`.

Guarantees: a sample is a function of (edges, direction, fan-outs, seed, epoch, batch, seeds, excluded edges) and of
dgl's version. It doesn't depend on which and how many threads ask for samples, nor on dgl's number of threads. No block
has an excluded edge, in either direction.

To that end one thread draws all samples. dgl gives each thread of a process its own stream of random numbers, numbered
in the order in which threads first draw; seeding only sets the position in the stream. `marius_oac.dgl.load` makes this
thread the first. A process in which another thread drew before is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch

from marius_oac.data.dgl.library import first_thread, load
from marius_oac.data.neighbors.neighbors import Direction
from marius_oac.data.neighbors.sampling import Block, Blocks, check_seeds, checked_fanouts, most_rows
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.neighbors import ANY
from marius_oac.kernels.cpu.random import stream_key
from marius_oac.kernels.cpu.relabel import relabel_behind

_ALLOWED = "allowed"
_FIRST_STREAM = [310998791, 516133182, 537507488]
_NONE = np.empty(0, dtype=np.int64)


class DglSampler:
    """Draws neighbours uniformly without replacement, by `dgl.sampling.sample_neighbors`.

    dgl needs the graph in memory as int64: 17 bytes for each entry (an edge in a direction) and 16 for each node, and
    up to three times as much while the graph is made. Relations are read from `edges` for the sampled edges.

    Args:
        edges: int32 or int64 [E, 2 or 3], may be mapped: heads, relations if any, tails.
        num_relations: R, of the edges; 0: none. In direction `both`, relation r of an edge that leads away from a node
            is r + R.
        direction: as `data.neighbors.neighbors.open_neighbors`.
        fanouts: neighbours per node and layer, -1 for all of them; the first layer, next to the rows, comes first.
        seed: of the run.

    Raises:
        InputError: dgl is missing, or has drawn in this process before this package loaded it.
        ValueError: as `NeighborSampler` and `open_neighbors`.
    """

    def __init__(
        self,
        edges: np.ndarray,
        num_nodes: int,
        num_relations: int,
        direction: Direction,
        fanouts: Sequence[int],
        seed: int,
    ) -> None:
        if direction not in get_args(Direction):
            raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}, not {direction!r}")
        if edges.shape[1] != (3 if num_relations else 2):
            raise ValueError(f"edges have {edges.shape[1]} columns, the graph {num_relations} relations")
        self._fanouts, self._num_nodes, self._seed = checked_fanouts(fanouts), num_nodes, seed
        self._edges, self._num_relations, self._direction = edges, num_relations, direction
        self._dgl = load()
        self._thread = first_thread()
        self._graph = self._thread.submit(self._make_graph).result()
        self._degrees = np.diff(self._graph.adj_tensors("csc")[0].numpy())
        self._allowed = self._graph.edata[_ALLOWED].numpy()  # shares memory

    def most_rows(self, seeds: int) -> int:
        """The largest number of rows that the blocks of so many seeds can have."""
        return most_rows(self._fanouts, self._num_nodes, seeds)

    def sample(self, seeds: np.ndarray, epoch: int, batch: int, excluded: np.ndarray = _NONE) -> Blocks:
        """The blocks of a batch; arguments and errors as of `neighbors.sampling.NeighborSampler.sample`."""
        check_seeds(seeds, self._num_nodes)
        key = stream_key(self._seed, "neighbors by dgl", epoch, batch)
        seed = int(key) >> 33  # dgl's have 31 bits
        return self._thread.submit(self._sample, seeds.copy(), seed, excluded).result()

    def _make_graph(self) -> Any:
        """The graph as dgl samples it, by its in-edges. It is made by one thread, so that their order is fixed."""
        _check_stream(self._dgl)
        heads, tails = (torch.from_numpy(self._edges[:, end].astype(np.int64)) for end in (0, -1))
        if self._direction == "both":
            heads, tails = torch.cat((heads, tails)), torch.cat((tails, heads))
        ends = (tails, heads) if self._direction == "out" else (heads, tails)
        graph = self._dgl.graph(ends, num_nodes=self._num_nodes).formats("csc")
        graph.edata[_ALLOWED] = torch.ones(len(heads), dtype=torch.bool)
        return graph

    def _sample(self, seeds: np.ndarray, seed: int, excluded: np.ndarray) -> Blocks:
        self._dgl.seed(seed)
        hidden = excluded
        if self._direction == "both":
            hidden = np.concatenate((excluded, excluded + len(self._edges)))
        self._allowed[hidden] = False
        try:
            nodes, layers, rows, places = seeds, [], seeds, seeds
            for fanout in reversed(self._fanouts):
                sources, entries, counts = self._draw(nodes, fanout, hidden.size > 0)
                ids = np.concatenate((nodes, sources))
                outputs = len(nodes)
                nodes, rows, places = relabel_behind(ids, outputs, self._num_nodes)
                layers.append(self._block(ids[outputs:], entries, counts))
            return Blocks(tuple(reversed(layers)), rows, places)
        finally:
            self._allowed[hidden] = True

    def _draw(self, nodes: np.ndarray, fanout: int, some_hidden: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Neighbours, their entries, and the number of neighbours of each node: int64 [m], [m], [n].

        dgl's `exclude_edges` removes edges from a sample and so leaves fewer. Its masks are exact, but with a mask it
        reads all entries of a node. So all nodes are sampled without a mask first, and nodes that got a hidden entry
        are sampled again with it. In both cases a sample without hidden entries is uniform among all such samples.
        """
        sources, entries = self._ask(nodes, fanout)
        degrees = self._degrees[nodes]
        counts = degrees if fanout == ANY else np.minimum(degrees, fanout)
        good = self._allowed[entries] if some_hidden else np.ones(0, dtype=bool)
        if good.all():
            return sources, entries, counts
        owners = np.repeat(np.arange(len(nodes)), counts)
        if fanout != ANY:
            again = np.unique(owners[~good])
            more, places = self._ask(nodes[again], fanout, prob=_ALLOWED)
            good = ~np.isin(owners, again)
            sources, entries = np.append(sources[good], more), np.append(entries[good], places)
            owners = np.append(owners[good], again[self._rows(nodes[again], places)])
            good = np.argsort(owners, kind="stable")
        return sources[good], entries[good], np.bincount(owners[good], minlength=len(nodes))

    def _ask(self, nodes: np.ndarray, fanout: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """Neighbours and their entries, int64 [m] each, grouped by node, in the order of `nodes`."""
        drawn = self._dgl.sampling.sample_neighbors(
            self._graph, torch.from_numpy(nodes), fanout, copy_ndata=False, **options
        )
        return drawn.edges()[0].numpy(), drawn.edata[self._dgl.EID].numpy()

    def _rows(self, nodes: np.ndarray, entries: np.ndarray) -> np.ndarray:
        """The index in `nodes`, int64 [n], of each entry's node; int64 [m]."""
        numbers, away = self._numbers(entries)
        ends = np.where(away, self._edges[numbers, 0], self._edges[numbers, -1])
        order = np.argsort(nodes)
        return order[np.searchsorted(nodes, ends, sorter=order)]

    def _numbers(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The edge of each entry, int64 [m], and whether it leads away from the node, bool [m]."""
        if self._direction != "both":
            return entries, np.full(len(entries), self._direction == "out")
        away = entries >= len(self._edges)
        return entries - away * len(self._edges), away

    def _block(self, sources: np.ndarray, entries: np.ndarray, counts: np.ndarray) -> Block:
        numbers, away = self._numbers(entries)
        relations = _NONE
        if self._num_relations:
            relations = self._edges[numbers, 1].astype(np.int64)
            if self._direction == "both":
                relations += away * self._num_relations
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        return Block(offsets, sources, relations, numbers)


def _check_stream(dgl: Any) -> None:
    """Raises InputError unless this thread has dgl's first stream."""
    dgl.seed(0)
    if dgl.random.choice(1 << 30, len(_FIRST_STREAM)).tolist() != _FIRST_STREAM:
        raise InputError(
            "has drawn random numbers in this process before marius_oac loaded it: neighbours would be others in the "
            "next run; load marius_oac.dgl first, or take the other sampler",
            "dgl",
        )
