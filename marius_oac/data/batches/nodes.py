"""Batches of labelled nodes, for node classification: plans as a pure function of (seed, epoch, batch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.batches import EncodedBatch, NodeBatch
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.batches.rank_slice import WHOLE
from marius_oac.data.neighbors.neighborhoods import Neighborhoods
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.permutation import bit_length, permuted, round_keys
from marius_oac.kernels.cpu.random import fold, stream_key, wrapping
from marius_oac.types import Plan, TableSpec

_NO_EDGES = np.empty(0, dtype=np.int64)


class NodePlanner:
    """A `types.Planner` of labelled nodes. Every epoch covers every node once, in another order; its last batch may be
    shorter.

    Args:
        nodes: int64 [n], at least one, all different.
        classes: int64 [n].
        num_nodes: of the graph.
        batch_size: nodes per batch.
        seed: of the run.
        around: samples what the encoder needs for every batch.

    Attributes:
        tables: the table of nodes; empty if nodes have no rows.
        share: the part of each batch that is planned; see `with_share`.
        batches_per_epoch: the number of batches of one pass over the nodes.
    """

    def __init__(
        self, nodes: np.ndarray, classes: np.ndarray, num_nodes: int, batch_size: int, seed: int, around: Neighborhoods
    ) -> None:
        self._nodes, self._classes, self._around = nodes, classes, around
        self._batch_size = min(batch_size, len(nodes))
        self._key, self.share = stream_key(seed, "shuffle"), WHOLE
        self.batches_per_epoch = -(-len(nodes) // self._batch_size)
        self.tables: Sequence[TableSpec] = around.tables(TableSpec(ENTITIES, num_nodes, self._batch_size))

    def epoch_ends(self, epochs: int) -> Sequence[int]:
        """The number of batches up to the end of each of the first `epochs` epochs."""
        return range(self.batches_per_epoch, epochs * self.batches_per_epoch + 1, self.batches_per_epoch)

    @wrapping
    def plan(self, batch_index: int) -> Plan[EncodedBatch[np.ndarray]]:
        """Plans batch `batch_index`, counted from 0 over all epochs. Raises ValueError if it is negative."""
        if batch_index < 0:
            raise ValueError(f"batch_index must be at least 0, not {batch_index}")
        epoch, batch = divmod(batch_index, self.batches_per_epoch)
        start = batch * self._batch_size
        first, end, part = self.share.of_batch(min(self._batch_size, len(self._nodes) - start))
        places = np.empty(end - first, dtype=np.int64)
        _shuffled(np.uint64(fold(self._key, epoch)), len(self._nodes), start + first, places)
        data = NodeBatch(epoch=epoch, share=float(part), labels=self._classes[places])
        examples = len(places) if part else 0
        return self._around.plan(batch_index, batch, self._nodes[places], data, examples, _NO_EDGES)

    def assign_rows(self, plan: Plan) -> Plan:
        """The plan unchanged, since a graph's rows are known in advance."""
        return plan


@compiled
def _shuffled(key: np.uint64, count: int, start: int, places: np.ndarray) -> None:
    keys, bits = round_keys(key), bit_length(count - 1)
    for i in range(places.size):
        places[i] = permuted(start + i, count, bits, keys)
