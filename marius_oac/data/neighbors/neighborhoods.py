"""What a batch holds for a graph encoder besides its examples: sampled blocks around its nodes, and their features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from marius_oac.batches import BlockData, EdgeBatch, EncodedBatch, NodeBatch
from marius_oac.data.neighbors.feature_means import feature_means, features_of
from marius_oac.data.neighbors.sampling import Blocks
from marius_oac.types import Plan, TableSpec, present

Head = EdgeBatch[np.ndarray] | NodeBatch[np.ndarray]


class Sampler(Protocol):
    """Draws the blocks of a batch: `sampling.NeighborSampler`, or `data.dgl.sampling.DglSampler`."""

    def most_rows(self, seeds: int) -> int:
        """The largest number of rows that the blocks of so many seeds can have."""

    def sample(self, seeds: np.ndarray, epoch: int, batch: int, excluded: np.ndarray = ...) -> Blocks:
        """See `NeighborSampler.sample`."""


@dataclass(frozen=True)
class Neighborhoods:
    """Adds to a planner's batches what an encoder needs.

    Attributes:
        sampler: draws the blocks.
        embedded: whether nodes have rows in the table.
        features: float32 [N, F], an array or a memmap that plan threads read from; None: nodes have no features.
        means: the aggregator of a first layer whose means are computed here; None: the layer computes them.

    Raises:
        ValueError: means are asked for, but nodes have rows or no features.
    """

    sampler: Sampler
    embedded: bool
    features: np.ndarray | None = None
    means: Literal["mean", "gcn"] | None = None

    def __post_init__(self) -> None:
        if self.means and (self.embedded or self.features is None):
            raise ValueError("means are formed of features, where nodes have no rows")

    def tables(self, table: TableSpec) -> list[TableSpec]:
        """The tables of a planner whose batches have at most `table.max_batch_rows` nodes to encode."""
        most = self.sampler.most_rows(table.max_batch_rows)
        return [TableSpec(table.name, table.num_rows, most)] if self.embedded else []

    def plan(
        self, batch_index: int, batch: int, nodes: np.ndarray, head: Head, examples: int, excluded: np.ndarray
    ) -> Plan[EncodedBatch[np.ndarray]]:
        """The plan of a batch that encodes `nodes`, int64 [s], all different.

        Args:
            batch: the batch's number in its epoch.
            head: the batch's examples, which name nodes by indices into `nodes`.
            examples: the number of examples in the batch.
            excluded: int64 [B], numbers of edges that must not be sampled.
        """
        blocks, planned = self.sampler.sample(nodes, head.epoch, batch, excluded), self.means is not None
        data = EncodedBatch(
            epoch=head.epoch,
            share=head.share,
            head=head,
            blocks=tuple(BlockData(block.offsets, block.sources) for block in blocks.layers[planned:]),
            inputs=None if planned else blocks.inputs,
            features=self._features(blocks),
            means=self._means(blocks) if planned else None,
        )
        return Plan(batch_index, (blocks.rows,) if self.embedded else (), data, examples)

    def _features(self, blocks: Blocks) -> np.ndarray | None:
        """Those of the first layer's inputs, or of its outputs where `means` has the others."""
        if self.features is None or self.means == "gcn":
            return None
        # In the order of the inputs, so that the step need not gather them.
        nodes = blocks.rows[blocks.inputs]
        return features_of(self.features, nodes[: len(blocks.layers[0].offsets) - 1] if self.means else nodes)

    def _means(self, blocks: Blocks) -> np.ndarray:
        nodes, block, with_own = blocks.rows[blocks.inputs], blocks.layers[0], self.means == "gcn"
        return feature_means(present(self.features), nodes, block.offsets, block.sources, with_own)
