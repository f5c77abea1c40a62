"""What a batch holds for a graph encoder besides its examples: sampled blocks around its nodes, and their features.

| array | type, shape | meaning |
|---|---|---|
| `blocks.K.offsets`, `blocks.K.sources` | int64 [O + 1], [messages] | block K of `sampling.Block`, from the outermost |
| `inputs` | int64 [n] | the row of each input node of block 0 |
| `features` | float32 [n, F] | only if nodes have features: those of each input node of block 0, in their order |

If the first layer gets only features and starts with their means, these arrays replace `inputs` and block 0:

| array | type, shape | meaning |
|---|---|---|
| `means` | float32 [O, F] | the mean of the features of each output node's neighbours in block 0 |
| `features` | float32 [O, F] | those of the output nodes, unless the means include them |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from marius_oac.data.neighbors.feature_means import feature_means, features_of
from marius_oac.data.neighbors.sampling import Blocks
from marius_oac.types import Plan, TableSpec, present


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
        self,
        batch_index: int,
        place: tuple[int, int],
        nodes: np.ndarray,
        arrays: Mapping[str, np.ndarray],
        examples: int,
        excluded: np.ndarray,
    ) -> Plan:
        """The plan of a batch that encodes `nodes`, int64 [s], all different.

        Args:
            place: epoch, and batch within it.
            arrays: of the batch's examples, which name nodes by indices into `nodes`.
            examples: the number of examples in the batch.
            excluded: int64 [B], numbers of edges that must not be sampled.
        """
        blocks = self.sampler.sample(nodes, *place, excluded)
        arrays = {**arrays, **(self._inputs(blocks) if self.means is None else self._means(blocks))}
        for number, block in enumerate(blocks.layers):
            if number or self.means is None:
                arrays[f"blocks.{number}.offsets"], arrays[f"blocks.{number}.sources"] = block.offsets, block.sources
        return Plan(batch_index, (blocks.rows,) if self.embedded else (), arrays, examples)

    def _inputs(self, blocks: Blocks) -> dict[str, np.ndarray]:
        arrays = {"inputs": blocks.inputs}
        if self.features is not None:
            # In the order of the inputs, so that the step need not gather them.
            arrays["features"] = features_of(self.features, blocks.rows[blocks.inputs])
        return arrays

    def _means(self, blocks: Blocks) -> dict[str, np.ndarray]:
        features, nodes, block = present(self.features), blocks.rows[blocks.inputs], blocks.layers[0]
        with_own = self.means == "gcn"
        arrays = {"means": feature_means(features, nodes, block.offsets, block.sources, with_own)}
        if not with_own:
            arrays["features"] = features_of(features, nodes[: len(block.offsets) - 1])
        return arrays
