"""Plans that know where their rows are, and who makes them.

Where batches are dispatched (`modes`), a trainer's pipeline numbers those that are dispatched to it, one after the
other. Which one that is is asked for when its turn comes, and it is planned then: one batch ahead of the one that is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from marius_oac.nodes.shards.placement import Route
from marius_oac.types import BatchData, Plan, Planner


@dataclass(frozen=True)
class RoutedPlan(Plan[Any]):
    """A plan that knows where its rows are: a route per table, over the table's rows in the order of `rows`."""

    routes: Sequence[Route] = ()

    @classmethod
    def of(cls, plan: Plan, routes: Sequence[Route], **others: Any) -> RoutedPlan:
        """The plan, routed; `others` take the place of what it has."""
        own = {each.name: getattr(plan, each.name) for each in fields(Plan)}
        return cls(**(own | others), routes=routes)


@dataclass(frozen=True)
class DispatchedPlan(RoutedPlan):
    """A plan of a batch of the data list: its number there."""

    number: int = field(kw_only=True)


class RoutedPlanner:
    """Another planner's batches, routed.

    Args:
        planner: its `assign_rows` is not called: what depends on the batches before is the shards' affair.
        routed: a plan with its routes.
    """

    def __init__(self, planner: Planner, routed: Callable[[Plan], RoutedPlan]):
        self._planner, self._routed, self.tables = planner, routed, planner.tables
        self._parts: Sequence[Planner] = ()
        self._reserve: Callable[[], int | None] = lambda: None

    def dispatch(self, parts: Sequence[Planner] = (), reserve: Callable[[], int | None] = lambda: None) -> None:
        """From now on batches are dispatched; or not any more.

        Args:
            parts: plan part p of each global batch.
            reserve: the number of the next batch of the data list, part p of batch n being n * M + p; None: no more.
        """
        self._parts, self._reserve = parts, reserve

    def plan(self, batch_index: int) -> Plan:
        return Plan(batch_index, (), BatchData(), 0) if self._parts else self._routed(self._planner.plan(batch_index))

    def assign_rows(self, plan: Plan) -> Plan | None:
        if not self._parts:
            return plan
        number = self._reserve()
        if number is None:
            return None
        batch, part = divmod(number, len(self._parts))
        made = self._routed(self._parts[part].plan(batch))
        data = replace(made.data, part=(batch, part))
        return DispatchedPlan(plan.batch_index, made.rows, data, made.examples, made.routes, number=number)
