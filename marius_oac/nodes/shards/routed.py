"""Plans with the nodes of their rows, and the planner that makes them.

Where batches are dispatched (`modes`), a trainer's pipeline numbers its batches consecutively. Each is reserved and
planned in `assign_rows`, one batch ahead of the one that is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from marius_oac.pipeline.batch import Batch
from marius_oac.storage.placement import Route
from marius_oac.types import BatchData, Plan, Planner


@dataclass(frozen=True)
class RoutedPlan(Plan[Any]):
    """A plan with the nodes of its rows: a route per table, over the table's rows in the order of `rows`."""

    routes: Sequence[Route] = ()

    @classmethod
    def of(cls, plan: Plan[Any], routes: Sequence[Route], **others: Any) -> RoutedPlan:
        """Returns a copy of the plan with routes; `others` replace its fields."""
        own = {each.name: getattr(plan, each.name) for each in fields(Plan)}
        return cls(**(own | others), routes=routes)


@dataclass(frozen=True)
class DispatchedPlan(RoutedPlan):
    """A plan of a batch of the data list, with its number there."""

    number: int = field(kw_only=True)


def routes_of(batch: Batch) -> Sequence[Route]:
    """Returns the routes of a batch that a `RoutedPlanner` has planned."""
    return cast(RoutedPlan, batch.plan).routes


def number_of(batch: Batch) -> int:
    """Returns the number in the data list of a batch that a `RoutedPlanner` has planned."""
    return cast(DispatchedPlan, batch.plan).number


class RoutedPlanner:
    """Plans another planner's batches, with routes.

    Args:
        planner: makes the plans; its `assign_rows` is not called, since shards assign rows.
        routed: returns a plan with its routes.
    """

    def __init__(self, planner: Planner, routed: Callable[[Plan[Any]], RoutedPlan]):
        self._planner, self._routed, self.tables = planner, routed, planner.tables
        self._parts: Sequence[Planner] = ()
        self._reserve: Callable[[], int | None] = lambda: None

    def dispatch(self, parts: Sequence[Planner] = (), reserve: Callable[[], int | None] = lambda: None) -> None:
        """Makes later batches those that are dispatched to this trainer; without parts, all batches again.

        Args:
            parts: planner p plans part p of each global batch.
            reserve: returns the number of the next batch in the data list, n * M + p for part p of batch n; None: none
                is left.
        """
        self._parts, self._reserve = parts, reserve

    def plan(self, batch_index: int) -> Plan[Any]:
        """See `Planner.plan`."""
        return Plan(batch_index, (), BatchData(), 0) if self._parts else self._routed(self._planner.plan(batch_index))

    def assign_rows(self, plan: Plan[Any]) -> Plan[Any] | None:
        """See `Planner.assign_rows`."""
        if not self._parts:
            return plan
        number = self._reserve()
        if number is None:
            return None
        batch, part = divmod(number, len(self._parts))
        made = self._routed(self._parts[part].plan(batch))
        data = replace(made.data, part=(batch, part))
        return DispatchedPlan(plan.batch_index, made.rows, data, made.examples, made.routes, number=number)
