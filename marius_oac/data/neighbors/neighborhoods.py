"""What a batch holds for a graph encoder besides its examples: sampled blocks around its nodes, and their features.

Means of the features of sampled neighbours, computed where batches are planned.

Features are not trained and need no gradient, so the means over neighbours can be part of the batch. The step then
reads two rows per output node, its own and the mean, instead of one per input node. There are usually several times as
many input nodes, and all of them would be copied to a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from marius_oac.batches import BlockData, EdgeBatch, EncodedBatch, NodeBatch
from marius_oac.data.neighbors.sampling import Blocks
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.prefetch import prefetch_row
from marius_oac.runtime.aligned import aligned_empty
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


_ZERO = np.float32(0)
_AHEAD = 16  # messages


def feature_means(
    features: np.ndarray, nodes: np.ndarray, offsets: np.ndarray, sources: np.ndarray, with_own: bool
) -> np.ndarray:
    """The mean of each output node's neighbours, float32 [O, F], added up in their order; zeros without neighbours.

    The result is aligned, as that of `features_of`, so that the step's matrix products need no copy.

    Args:
        features: float32 [N, F].
        nodes: int64 [n], the id of each input node. The output nodes come first.
        offsets, sources: of a `sampling.Block`, int64 [O + 1] and [messages].
        with_own: count the node itself as its last neighbour.
    """
    count = len(offsets) - 1
    means = aligned_empty((count, features.shape[1]), np.float32)
    plain = features.view(np.ndarray)
    plain.flags.writeable = False  # so that the kernel is compiled for one type
    _add_up(plain, nodes[:count], offsets, nodes[sources], with_own, means)
    return means


def features_of(features: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """A copy of the features, float32 [N, F], of the nodes with ids int64 [n]: float32 [n, F]."""
    found = aligned_empty((len(nodes), features.shape[1]), np.float32)
    # `take` needs a third of the time of indexing. Its default mode "raise" would write to a buffer first.
    return np.take(features.view(np.ndarray), nodes, axis=0, out=found, mode="clip")


@compiled
def _add_up(
    features: np.ndarray,
    own: np.ndarray,
    offsets: np.ndarray,
    neighbors: np.ndarray,
    with_own: bool,
    means: np.ndarray,
) -> None:
    width = features.shape[1]
    for i in range(own.size):
        for j in range(width):
            means[i, j] = _ZERO
        if with_own:
            prefetch_row(features, own[i], width)
        for at in range(offsets[i], offsets[i + 1]):
            prefetch_row(features, neighbors[min(at + _AHEAD, neighbors.size - 1)], width)
            node = neighbors[at]
            for j in range(width):
                means[i, j] += features[node, j]
        count = offsets[i + 1] - offsets[i]
        if with_own:
            count += 1
            for j in range(width):
                means[i, j] += features[own[i], j]
        if count > 1:
            divisor = np.float32(count)
            for j in range(width):
                means[i, j] /= divisor
