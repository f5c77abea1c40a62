"""A trainer's virtual parts of one global batch, pulled and pushed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.nodes.parts.blocks import blocks_of
from marius_oac.nodes.shards.placement import Route
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.types import BatchData, Plan, Planner


@dataclass(frozen=True, eq=False)
class OnePart:
    """A part: its number, the record of its examples, and for each table the places of its rows among those that are
    pulled, int64 [n]."""

    number: int
    data: BatchData
    index: Sequence[np.ndarray]


@dataclass(frozen=True, eq=False)
class BlockSums:
    """The gradients of an aligned block, of each table: which of the rows pulled have one, bool [n], and its sum over
    the block's parts, float32 [n, D]; others are undefined."""

    tables: Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False, kw_only=True)
class PartedBatch(BatchData):
    """What a trainer computes of a global batch. `share` is that of a single part, whose gradients are pushed as they
    are; of several, whose sums are weighted, it is 1. 0: nothing is updated by it.

    Attributes:
        own: the parts that have examples, ascending; or one with an example of another part.
        blocks: the aligned blocks of all parts of this trainer.
        sums: of each block, if there are several; the step fills it, and what pushes them reads it.
    """

    own: tuple[OnePart, ...]
    blocks: Sequence[range]
    sums: list[BlockSums] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether this trainer has one part of each batch."""
        return len(self.blocks) == 1 and len(self.blocks[0]) == 1


Gather = Callable[[Sequence[Any]], tuple[Sequence[Route], Sequence[np.ndarray], Sequence[Sequence[np.ndarray]]]]
"""Returns the routes to all rows of some plans, these rows, and of each plan and table their places among them."""


class PartPlanner:
    """A `types.Planner` of a trainer's parts of every batch, with the routes of their rows.

    Args:
        planners: one for each part, by number.
        parts: this trainer's.
        every: number of all parts.
        gather: of the task's rows.
    """

    def __init__(self, planners: Sequence[Planner], parts: range, every: int, gather: Gather):
        self._planners, self._parts, self._gather = [planners[part] for part in parts], parts, gather
        self._blocks = blocks_of(parts, every)
        self.tables = planners[0].tables

    def plan(self, batch_index: int) -> Plan[Any]:
        """See `Planner.plan`."""
        plans = [planner.plan(batch_index) for planner in self._planners]
        made = [(part, plan) for part, plan in zip(self._parts, plans, strict=True) if plan.data.share]
        made = made or [(self._parts[0], plans[0])]
        routes, rows, places = self._gather([plan for _, plan in made])
        own = tuple(
            OnePart(part, replace(plan.data, part=(batch_index, part)), index)
            for (part, plan), index in zip(made, places, strict=True)
        )
        share = made[0][1].data.share
        data = PartedBatch(
            epoch=plans[0].data.epoch, share=share if len(self._parts) == 1 else float(share > 0), own=own,
            blocks=self._blocks,
        )  # fmt: skip
        return RoutedPlan(batch_index, rows, data, sum(plan.examples for _, plan in made), routes)

    def assign_rows(self, plan: Plan[Any]) -> Plan[Any]:
        """See `Planner.assign_rows`; shards assign rows."""
        return plan


def block_sums(data: PartedBatch, gradients: Sequence[Sequence[np.ndarray]], counts: Sequence[int]) -> list[BlockSums]:
    """Returns the sums of each block of a batch.

    Args:
        gradients: of each part of `data.own` and each table, float32 [n, D].
        counts: rows pulled, of each table.
    """
    found = []
    for block in data.blocks:
        chosen = [at for at, part in enumerate(data.own) if part.number in block and part.data.share]
        slots, shares = [data.own[at].number for at in chosen], [data.own[at].data.share for at in chosen]
        tables = [
            kernels.tree_sum(
                slots,
                [data.own[at].index[table] for at in chosen],
                [gradients[at][table] for at in chosen],
                shares,
                count,
            )
            for table, count in enumerate(counts)
        ]
        found.append(BlockSums(tables))
    return found


def frames_of(sums: Sequence[BlockSums], table: int, places: np.ndarray) -> list[np.ndarray]:
    """Returns the two frames of a push of several blocks, of one table and one node: which of the node's rows each
    block has, bits uint8 [blocks, ceil(n / 8)], and their gradients, float32 [k, D], block by block.

    Args:
        places: of the node's rows among those pulled, int64 [n].
    """
    present = [each.tables[table][0][places] for each in sums]
    picked = [kernels.spread(each.tables[table][1], places[mine]) for each, mine in zip(sums, present, strict=True)]
    return [np.packbits(np.array(present), axis=1), np.concatenate(picked)]
