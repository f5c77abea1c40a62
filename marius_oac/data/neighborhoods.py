"""What a batch holds for an encoder beside its examples: sampled blocks around its nodes, and their features.

| array | type, shape | meaning |
|---|---|---|
| `blocks.K.offsets`, `blocks.K.sources` | int64 [O + 1], [messages] | block K of `sampling.Block`, from the outermost |
| `inputs` | int64 [n] | the row of each input node of block 0 |
| `features` | float32 [n, F] | only where nodes have some: of each input node of block 0, in their order |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marius_oac.data.sampling import Blocks
from marius_oac.types import Plan, TableSpec


class Sampler(Protocol):
    """Draws the blocks of a batch: `sampling.NeighborSampler`, or dgl's."""

    def most_rows(self, seeds: int) -> int:
        """No blocks of so many seeds have more rows."""

    def sample(self, seeds: np.ndarray, epoch: int, batch: int, excluded: np.ndarray = ...) -> Blocks:
        """See `NeighborSampler.sample`."""


@dataclass(frozen=True)
class Neighborhoods:
    """How a planner's batches get what an encoder needs.

    Attributes:
        sampler: of the blocks.
        embedded: nodes have rows of their own.
        features: float32 [N, F], an array or a memmap that plan threads read from; None: there are none.
    """

    sampler: Sampler
    embedded: bool
    features: np.ndarray | None = None

    def tables(self, table: TableSpec) -> list[TableSpec]:
        """The tables of a planner whose batches have at most `table.max_batch_rows` nodes to encode."""
        most = self.sampler.most_rows(table.max_batch_rows)
        return [TableSpec(table.name, table.num_rows, most)] if self.embedded else []

    def plan(
        self,
        sequence: int,
        place: tuple[int, int],
        nodes: np.ndarray,
        arrays: Mapping[str, np.ndarray],
        examples: int,
        excluded: np.ndarray,
    ) -> Plan:
        """A batch whose nodes to encode are `nodes`, int64 [s], all different.

        Args:
            place: epoch, and batch within it.
            arrays: of the batch; what names nodes there are indices into `nodes`.
            excluded: int64, numbers of edges that must not be seen.
        """
        blocks = self.sampler.sample(nodes, *place, excluded)
        arrays = {**arrays, "inputs": blocks.inputs}
        for number, block in enumerate(blocks.layers):
            arrays[f"blocks.{number}.offsets"], arrays[f"blocks.{number}.sources"] = block.offsets, block.sources
        if self.features is not None:
            # In the order of the inputs: gathered once, and here, where batches are planned beside the computing.
            # `take` needs a third of the time of brackets.
            arrays["features"] = np.asarray(np.take(self.features, blocks.rows[blocks.inputs], axis=0))
        return Plan(sequence, (blocks.rows,) if self.embedded else (), arrays, examples)
