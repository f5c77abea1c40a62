"""Plans a trainer's virtual parts of every batch together, so that it pulls each row once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marius_oac.nodes.parts.batch import OnePart, PartedBatch
from marius_oac.nodes.parts.blocks import blocks_of
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.storage.placement import Route
from marius_oac.types import Plan, Planner

Gathered = tuple[Sequence[Route], Sequence[np.ndarray], Sequence[Sequence[np.ndarray]]]
"""The routes to all rows of some plans, these rows, and of each plan and table their places among them, int64 [n]."""


class PartPlanner:
    """A `types.Planner` of a trainer's parts of every batch, with the routes of their rows.

    Args:
        planners: one for each part, by number.
        parts: this trainer's.
        every: number of all parts.
        gather: returns those of some plans' rows.
    """

    def __init__(
        self, planners: Sequence[Planner], parts: range, every: int, gather: Callable[[Sequence[Any]], Gathered]
    ):
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
