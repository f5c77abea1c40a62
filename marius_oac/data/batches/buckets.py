"""Batches of a graph's training edges in a partition ordering (`orderings`): no batch needs a row outside its buffer.

Guarantees: as `edges`: a plan is a pure function of (edges, configuration, batch index), made by any thread. The order
of an epoch is computed on demand, only from (configuration, epoch), and the last few are cached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import GraphPlanner, Place
from marius_oac.data.batches.orderings import epoch_order
from marius_oac.data.graphs.buckets import partition_starts
from marius_oac.data.graphs.negatives import spans_of
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.random import fold, wrapping
from marius_oac.types import TableSpec, present

_EPOCHS_KEPT = 3  # plan workers may be in two epochs at a time


@dataclass(frozen=True)
class EpochBatches:
    """The buffer states of one epoch with their batches.

    Attributes:
        states: int64 [S, C], the partitions in the buffer.
        buckets: int64 [P * P], the buckets' numbers, ordered by state.
        bucket_ends: int64 [S + 1]: the buckets of state s are `buckets[bucket_ends[s] : bucket_ends[s + 1]]`.
        batch_ends: int64 [S + 1]: the batches of state s are [batch_ends[s], batch_ends[s + 1]).
    """

    states: np.ndarray
    buckets: np.ndarray
    bucket_ends: np.ndarray
    batch_ends: np.ndarray


class BucketSchedule:
    """Knows which buckets and how many batches each buffer state of each epoch has. It needs only the edges' counts.

    Args:
        counts: int64 [P, P], the number of edges of each bucket.
        num_nodes: of the graph.
        config: `seed`, `model.reciprocal` and `training` are used; `training.ordering` is not `shuffle`.

    Raises:
        InputError: there are more partitions than nodes.
    """

    def __init__(self, counts: np.ndarray, num_nodes: int, config: Config) -> None:
        self.check(num_nodes, config)
        self.counts, self.num_nodes = counts, num_nodes
        self._config, self._sides = config, 1 + config.model.reciprocal
        self.epoch = lru_cache(_EPOCHS_KEPT)(self._epoch)
        self._ends: list[int] = []

    @staticmethod
    def check(num_nodes: int, config: Config) -> None:
        """Raises InputError if there are more partitions than nodes."""
        partitions = present(config.training.ordering.partitions)
        if partitions > num_nodes:
            raise InputError(f"{partitions:,} partitions of {num_nodes:,} nodes", "training.ordering.partitions")

    @property
    def most_rows(self) -> int:
        """The most nodes of a buffer state."""
        sizes = np.sort(np.diff(partition_starts(self.num_nodes, len(self.counts))))
        return int(sizes[-present(self._config.training.ordering.buffer) :].sum())

    def epoch_ends(self, epochs: int) -> Sequence[int]:
        """The number of batches up to the end of each of the first `epochs` epochs. Epochs differ in this number."""
        if len(self._ends) < epochs:
            self._ends = np.cumsum([self.epoch(epoch).batch_ends[-1] for epoch in range(epochs)]).tolist()
        return self._ends[:epochs]

    def _epoch(self, epoch: int) -> EpochBatches:
        order = epoch_order(self._config.training.ordering, self._config.seed, epoch)
        state_of = order.state_of.ravel()
        buckets = np.argsort(state_of, kind="stable")
        bucket_ends = np.searchsorted(state_of[buckets], np.arange(len(order.states) + 1))
        so_far = np.concatenate(([0], np.cumsum(self.counts.ravel()[buckets])))
        examples = self._sides * np.diff(so_far[bucket_ends])
        batches = -(-examples // self._config.training.batch_size)
        return EpochBatches(order.states, buckets, bucket_ends, np.concatenate(([0], np.cumsum(batches))))


class BucketPlanner(GraphPlanner):
    """Plans batches whose edges and negatives are all in the partitions of one buffer state.

    Every epoch covers every edge once, state after state. The edges of a state are shuffled, and spread evenly over the
    fewest batches that hold them. So a batch may have fewer edges than `training.batch_size`, and epochs differ in
    their number of batches. Uniform negatives are nodes of the buffer; negatives by degree are ends of edges with both
    ends in the buffer. With `model.reciprocal` a reversed edge belongs to the bucket of the edge.

    Args:
        edges: as for `GraphPlanner`, sorted by bucket (`graphs.buckets.open_buckets`).
        schedule: of the same graph and configuration.

    Attributes:
        tables: as in `GraphPlanner`; a batch has at most the rows of the buffer.

    Raises:
        InputError: as `GraphPlanner`.
    """

    def __init__(
        self,
        edges: np.ndarray,
        num_nodes: int,
        num_relations: int,
        config: Config,
        schedule: BucketSchedule,
        most_bytes: int | None = None,
    ) -> None:
        super().__init__(edges, num_nodes, num_relations, config, most_bytes)
        self._schedule = schedule
        self._ends = schedule.epoch_ends(config.training.epochs)
        self._node_starts = partition_starts(num_nodes, len(schedule.counts))
        self._counts = schedule.counts.ravel()
        self._edge_starts = np.concatenate(([0], np.cumsum(self._counts)[:-1]))
        (table,) = self.tables
        self.tables = (TableSpec(table.name, num_nodes, min(table.max_batch_rows, schedule.most_rows)),)

    def epoch_ends(self, epochs: int) -> Sequence[int]:
        """The number of batches up to the end of each of the first `epochs` epochs."""
        return self._schedule.epoch_ends(epochs)

    @wrapping
    def _place(self, batch_index: int) -> Place:
        if batch_index >= self._ends[-1]:
            raise ValueError(f"batch_index must be below the {self._ends[-1]} batches of all epochs, not {batch_index}")
        epoch = bisect_right(self._ends, batch_index)
        batch = batch_index - (self._ends[epoch - 1] if epoch else 0)
        plan = self._schedule.epoch(epoch)
        state = int(np.searchsorted(plan.batch_ends, batch, side="right")) - 1
        begin, end = plan.batch_ends[state], plan.batch_ends[state + 1]
        edges = self._edges_of(plan.buckets[plan.bucket_ends[state] : plan.bucket_ends[state + 1]])
        examples = int(edges[1, -1]) * self._sides_of_edge
        start, stop = (int(examples * number // (end - begin)) for number in (batch - begin, batch - begin + 1))
        key = np.uint64(fold(np.uint64(fold(self._shuffle_key, epoch)), state))
        held = plan.states[state]
        nodes = spans_of(self._node_starts[held], self._node_starts[held + 1] - self._node_starts[held])
        among = edges
        if self._by_degree:
            among = self._edges_of((held[:, None] * len(self._schedule.counts) + held).ravel())
        return Place(epoch, batch, start, stop - start, key, edges, among, nodes)

    def _edges_of(self, buckets: np.ndarray) -> np.ndarray:
        return spans_of(self._edge_starts[buckets], self._counts[buckets])
