"""Batches whose rows are in several processes: planned with a route to each row, and given back as gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from marius_oac.errors import InputError
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.runtime.channel import Channel
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.storage.placement import Placement, route_keys
from marius_oac.torch.at_hand import Rows, Rule
from marius_oac.torch.pipeline import LoopStep
from marius_oac.torch.planner import Fed, LoopBatch, LoopPlanner
from marius_oac.torch.processes.shard import Stepped
from marius_oac.torch.tables import Table
from marius_oac.types import Plan


class SharedBatch(LoopBatch):
    """A batch, and what the user's loop has done with it.

    Attributes:
        steps: of each table; None: nothing. Put there when the batch is handed back.
    """

    steps: list[Stepped | None]

    def __init__(self, fed: Fed, distinct: Sequence[DistinctKeys]):
        local = [each.numbers.astype(np.int64) for each in distinct]
        order = [np.arange(each.asked[1].size) for each in distinct]
        super().__init__(fed=fed, distinct=distinct, local=local, order=order)
        object.__setattr__(self, "steps", [None] * len(distinct))


class SharedPlanner(LoopPlanner):
    """Plans batches whose rows the shards of all processes assign."""

    def __init__(self, tables: Sequence[Table], feed: Channel[Fed], placement: Placement):
        super().__init__(tables, feed)
        self._placement = placement

    def _planned(self, fed: Fed, distinct: Sequence[DistinctKeys]) -> Plan[Any]:
        data = SharedBatch(fed, distinct)
        routes = [route_keys(self._placement, *each.asked) for each in distinct]
        return RoutedPlan(fed.batch_index, tuple(data.order), data, 1, routes)

    def assign_rows(self, plan: Plan[Any]) -> Plan[Any]:
        """Returns the plan: shards give rows to new keys."""
        return plan


class SharedRows(Rows):
    """The rows of one table in the batch at hand. `update` keeps the gradient, which is sent when the batch is handed
    back; the leaf stays as it was.

    Attributes:
        step: what is to be sent; None: nothing was called.
    """

    shared = True
    step: Stepped | None = None

    def update(self, by: Rule, rate: float, number: int, decay: float) -> bool:
        """See `Rows.update`. Raises InputError if it was called before."""
        gradients = self._gradient()
        if gradients is None:
            return False
        if self.stepped:
            raise InputError(
                "a second step in one batch: over several processes rows are updated once, when the batch is handed "
                "back", f"batch {self.number}, table {self.name!r}"
            )  # fmt: skip
        self.step = Stepped(rate, number, np.concatenate([gradients, self._used[:, None]], 1, dtype=np.float32), decay)
        self.stepped = True
        return True


class SharedStep(LoopStep):
    """Hands batches to the user, and keeps what is to be sent."""

    rows_type = SharedRows

    def compute(self, rows: Sequence[np.ndarray], data: Any, timestamp: int) -> float:
        """See `LoopStep.compute`."""
        opened = self.open(rows, data)
        if self._hand_over.offer(opened):
            data.steps[:] = [cast(SharedRows, each).step for each in opened.rows]
            if data.fed.padding == len(data.fed.batches):
                data.steps[:] = [step and replace(step, gradients=np.zeros_like(step.gradients)) for step in data.steps]
        else:
            for own in rows:
                own[:] = 0  # of a batch that was cut it may be anything
        return 0.0
