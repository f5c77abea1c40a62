"""Batches of a graph's training edges with shared negatives (`docs/batches.md`, "A batch of a graph").

Guarantees: a plan is a pure function of (edges, configuration, batch index). A planner has no mutable state, so any
number of threads may call `plan` at once, in any order, and they rarely hold the GIL. Neither memory nor time of a
batch depends on the number of nodes or edges (except with `negatives.all`, where every node is a row).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.config.parts import DECODERS, OWN, WITHOUT_RELATIONS
from marius_oac.data.batches.rank_slice import WHOLE
from marius_oac.data.graphs.negatives import as_kernel_input, count_by_degree, fill_negatives, located, span_up_to
from marius_oac.data.graphs.resident import Resident
from marius_oac.data.neighbors.neighborhoods import Neighborhoods
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.permutation import MAX_SIZE, bit_length, permuted, round_keys
from marius_oac.kernels.cpu.random import fold, stream_key, wrapping
from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.types import Plan, Planner, Side, TableSpec

ENTITIES = "entities"
"""The table of the nodes' rows."""


class Place(NamedTuple):
    """The position of a batch, and the edges and nodes that it may consist of.

    Attributes:
        epoch, batch: batches are counted from 0 in each epoch.
        start, size: the batch's places in the shuffle of its examples.
        shuffle_key: of that shuffle.
        edges: spans (see `spans`) of those that are shuffled.
        among: spans of those whose ends are the negatives by degree.
        nodes: spans of those that are the uniform negatives.
    """

    epoch: int
    batch: int
    start: int
    size: int
    shuffle_key: np.uint64
    edges: np.ndarray
    among: np.ndarray
    nodes: np.ndarray


class EpochPlanner(Planner, Protocol):
    """A planner that knows where epochs end."""

    def epoch_ends(self, epochs: int) -> Sequence[int]:
        """The number of batches up to the end of each of the first `epochs` epochs."""


class GraphPlanner(ABC):
    """Plans batches over the training edges of a graph; a `types.Planner` of one table, "entities".

    `_place` decides which edges and nodes a batch may consist of. A batch of fewer edges than `negatives.chunks` has
    one chunk per edge. Decoder `dot` ignores the relations of a graph that has some: its batches have neither
    `relations` nor `relation_rows`.

    Args:
        edges: int32 or int64, C order, an array or a memmap: [E, 3] (head, relation, tail) where num_relations > 0,
            else [E, 2] (head, tail). Their ids have been checked (`Graph.edges` does); they are read at random.
        num_nodes: ids lie in [0, num_nodes), at most 2**40.
        num_relations: relation ids lie in [0, num_relations); 0: the edges have none.
        config: `seed`, `model` and `training` are used.
        most_bytes: of edges in a mapped file that may be in memory at a time; None: all of them.
        around: what an encoder needs of every batch, without the batch's own edges; None: there is no encoder.

    Attributes:
        tables: the one table, with the most rows that a batch can have; none where nodes have no rows.
        share: the part of each batch that is planned; see `with_share`.

    Raises:
        InputError: no edges, or a configuration that doesn't fit the graph, named by its key.
        ValueError: `edges` has another type or shape.
    """

    def __init__(
        self,
        edges: np.ndarray,
        num_nodes: int,
        num_relations: int,
        config: Config,
        most_bytes: int | None = None,
        around: Neighborhoods | None = None,
    ) -> None:
        self._around = around
        self._edges, self._resident = as_kernel_input(edges), Resident(edges, most_bytes)
        self._num_nodes, self.share = num_nodes, WHOLE
        if edges.shape[1] != (3 if num_relations else 2):
            raise ValueError(f"edges have {edges.shape[1]} columns, but the graph has {num_relations} relations")
        _check_model(config, num_relations)
        _check_sizes(edges, num_nodes)
        negatives, self._sides_of_edge = config.training.negatives, 1 + config.model.reciprocal
        self._num_relations = (
            num_relations * self._sides_of_edge * DECODERS.get(config.model.decoder, OWN).uses_relations
        )
        self._num_examples = len(edges) * self._sides_of_edge
        if self._num_examples > MAX_SIZE:
            raise InputError(f"{self._num_examples:,} training edges, at most 2**40 are possible", "data.path")
        self._batch_size = min(config.training.batch_size, self._num_examples)
        self._chunks, self._count = (1, 0) if negatives.all else (negatives.chunks, negatives.count)
        self._by_degree = count_by_degree(self._count, negatives.degree_fraction)
        self._all_rows = _read_only(np.arange(num_nodes)) if negatives.all else None
        self._num_sides = 1 if config.model.reciprocal else len(Side)
        self._shuffle_key = stream_key(config.seed, "shuffle")
        self._negatives_key = stream_key(config.seed, "negatives")
        most_ids = 2 * self._batch_size + self._num_sides * self._chunks * self._count
        if (max(num_nodes, self._num_relations) - 1).bit_length() + (most_ids - 1).bit_length() > 63:
            raise InputError(f"{most_ids:,} ids in a batch are too many for {num_nodes:,} nodes", "training.batch_size")
        most_rows = num_nodes if negatives.all else min(num_nodes, most_ids)
        table = TableSpec(ENTITIES, num_nodes, most_rows)
        self.tables: Sequence[TableSpec] = around.tables(table) if around else (table,)

    @abstractmethod
    def epoch_ends(self, epochs: int) -> Sequence[int]:
        """Batches up to the end of each of the first so many epochs."""

    @abstractmethod
    def _place(self, batch_index: int) -> Place:
        """The place of batch number `batch_index`."""

    @wrapping
    def plan(self, batch_index: int) -> Plan:
        """Batch number `batch_index`, counted from 0 over all epochs."""
        if batch_index < 0:
            raise ValueError(f"batch_index must be at least 0, not {batch_index}")
        at = self._place(batch_index)
        first, end, part = self.share.of_batch(at.size)
        size = end - first
        # A share may begin and end within a chunk; it then has the chunk's negatives.
        bounds = np.arange(min(self._chunks, at.size) + 1) * at.size // min(self._chunks, at.size)
        chunk = int(np.searchsorted(bounds, first, "right")) - 1
        last_chunk = int(np.searchsorted(bounds, end))
        shape = (self._num_sides, last_chunk - chunk, self._count)
        ids = np.empty(2 * size + math.prod(shape), dtype=np.int64)
        heads, tails, negatives = ids[:size], ids[size : 2 * size], ids[2 * size :].reshape(shape)
        relations = np.empty(size if self._num_relations else 0, dtype=np.int64)
        numbers = np.empty(size if self._around else 0, dtype=np.int64)
        self._gather(at, first, heads, relations, tails, numbers)
        self._draw(at, len(bounds) - 1, chunk, negatives)
        self._check_ids(ids, self._num_nodes)
        self._check_ids(relations, self._num_relations)
        related, all_rows = bool(self._num_relations), self._all_rows
        data = EdgeBatch(
            epoch=int(at.epoch),
            share=float(part),
            heads=heads,
            tails=tails,
            relation_rows=relabel(relations, self._num_relations) if related else None,
            relations=relations if related else None,
            chunk_offsets=tuple((np.clip(bounds[chunk : last_chunk + 1], first, end) - first).tolist()),
            negatives=negatives if all_rows is None else None,
        )
        rows = relabel(ids, self._num_nodes) if all_rows is None else all_rows
        if self._around:
            return self._around.plan(batch_index, at.batch, rows, data, size if part else 0, numbers)
        return Plan(batch_index, (rows,), data, size if part else 0)

    def _gather(
        self, at: Place, skip: int, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, numbers: np.ndarray
    ) -> None:
        """Fills in the batch's edges from number `skip` on; `numbers`, which may be empty, gets their places in the
        graph."""
        examples = int(at.edges[1, -1]) * self._sides_of_edge
        for first in range(0, heads.size, self._resident.at_once):
            part = slice(first, first + self._resident.at_once)
            _gather_edges(
                self._edges, at.edges, examples, self._num_relations, at.shuffle_key, at.start + skip + first,
                heads[part], relations[part], tails[part], numbers[part],
            )  # fmt: skip
            self._resident.touched(len(heads[part]))

    def _check_ids(self, ids: np.ndarray, bound: int) -> None:
        """Raises InputError where an id that was read is none: they were checked, so the file has changed."""
        if ids.size and not 0 <= ids.min() <= ids.max() < bound:
            raise InputError("has changed since the run began: an id is out of range", "data.path")

    def _draw(self, at: Place, chunks: int, first: int, negatives: np.ndarray) -> None:
        """Fills in `negatives`, int64 [sides, c, K], of chunk `first` and the following ones of `chunks`."""
        if not self._count:
            return
        key = np.uint64(fold(np.uint64(fold(self._negatives_key, at.epoch)), at.batch))
        for side, groups in enumerate(negatives):
            number = side * chunks + first
            fill_negatives(key, self._edges, at.among, at.nodes, self._by_degree, number, groups)
            self._resident.touched(self._by_degree * len(groups))

    def assign_rows(self, plan: Plan) -> Plan:
        """Returns the plan as it is: a graph's rows are known beforehand."""
        return plan


class EdgePlanner(GraphPlanner):
    """Plans batches of edges in random order. Every epoch covers every edge once, in another order; its last batch may
    be shorter. Arguments and errors are those of `GraphPlanner`.

    Attributes:
        batches_per_epoch: the number of batches of one pass over the edges (twice as many with `model.reciprocal`).
    """

    @cached_property
    def batches_per_epoch(self) -> int:
        """Batches of one pass over the edges."""
        return -(-self._num_examples // self._batch_size)

    @cached_property
    def _spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Of all edges, and of all nodes."""
        return span_up_to(len(self._edges)), span_up_to(self._num_nodes)

    def epoch_ends(self, epochs: int) -> Sequence[int]:
        """The number of batches up to the end of each of the first `epochs` epochs."""
        return range(self.batches_per_epoch, epochs * self.batches_per_epoch + 1, self.batches_per_epoch)

    @wrapping
    def _place(self, batch_index: int) -> Place:
        epoch, batch = divmod(batch_index, self.batches_per_epoch)
        start = batch * self._batch_size
        size = min(self._batch_size, self._num_examples - start)
        key = np.uint64(fold(self._shuffle_key, epoch))
        edges, nodes = self._spans
        return Place(epoch, batch, start, size, key, edges, edges, nodes)


class ReorderedPlanner:
    """Plans batch `order[i]` of another planner as batch i: the replay of a recorded computation order.

    Args:
        order: int64 [n], the other planner's batch numbers, each at most once.

    Raises:
        InputError: a number that is negative or comes twice; later, a batch beyond the end of the order.
    """

    def __init__(self, planner: EpochPlanner, order: np.ndarray) -> None:
        if order.dtype != np.int64 or order.ndim != 1:
            raise InputError(f"an order is int64 [n], not {order.dtype} {list(order.shape)}", "pipeline.order")
        numbers = np.sort(order)
        if len(numbers) and numbers[0] < 0:
            raise InputError(f"holds {numbers[0]}, but batches are counted from 0", "pipeline.order")
        twice = np.flatnonzero(numbers[1:] == numbers[:-1])
        if len(twice):
            raise InputError(f"holds batch {numbers[twice[0]]} more than once", "pipeline.order")
        self._planner, self._order = planner, order.copy()
        self.tables = planner.tables

    def plan(self, batch_index: int) -> Plan:
        """The other planner's batch `order[batch_index]`, numbered `batch_index`."""
        if not 0 <= batch_index < len(self._order):
            raise InputError(f"has {len(self._order)} batches, none with number {batch_index}", "pipeline.order")
        original = self._planner.plan(int(self._order[batch_index]))
        return Plan(batch_index, original.rows, original.data, original.examples)

    def epoch_ends(self, epochs: int) -> Sequence[int]:
        """Those of the other planner; the order changes no epoch's number of batches."""
        return self._planner.epoch_ends(epochs)

    def assign_rows(self, plan: Plan) -> Plan | None:
        """See `Planner.assign_rows`."""
        return self._planner.assign_rows(plan)


@compiled
def _gather_edges(
    edges: np.ndarray,
    spans: np.ndarray,
    num_examples: int,
    num_relations: int,
    key: np.uint64,
    start: int,
    heads: np.ndarray,
    relations: np.ndarray,
    tails: np.ndarray,
    numbers: np.ndarray,
) -> None:
    num_edges, last = spans[1, -1], edges.shape[1] - 1
    keys, bits = round_keys(key), bit_length(num_examples - 1)
    # First all numbers, then all edges, so that cache misses of the second loop overlap.
    for i in range(heads.size):
        number = permuted(start + i, num_examples, bits, keys)
        backward = np.int64(number >= num_edges)
        heads[i] = located(spans, number - backward * num_edges) ^ -backward  # the complement if it is reversed
    for i in range(heads.size):
        edge = heads[i]
        backward = edge < 0
        if backward:
            edge = ~edge
        if numbers.size:
            numbers[i] = edge
        if relations.size:
            relations[i] = edges[edge, 1] + (num_relations // 2 if backward else 0)
        heads[i] = edges[edge, last if backward else 0]
        tails[i] = edges[edge, 0 if backward else last]


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _check_model(config: Config, num_relations: int) -> None:
    decoder = config.model.decoder
    uses_relations = DECODERS.get(decoder, OWN).uses_relations
    if uses_relations and not num_relations and decoder in DECODERS:  # the step asks a user's own
        raise InputError(
            f"{decoder} needs relations, but this graph has none; use {WITHOUT_RELATIONS}", "model.decoder"
        )
    if not uses_relations and config.model.reciprocal:
        raise InputError(f"{decoder} has no relations that could be reversed", "model.reciprocal")


def _check_sizes(edges: np.ndarray, num_nodes: int) -> None:
    if not len(edges):
        raise InputError("the graph has no training edges", "data.path")
    if not 1 <= num_nodes <= MAX_SIZE:
        raise InputError(f"{num_nodes:,} nodes, 1 to 2**40 are possible", "data.path")
