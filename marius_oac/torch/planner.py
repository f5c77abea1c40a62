"""Plans batches from the keys that the loop's loader gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.runtime.channel import Channel
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.torch.key_forms import KeyArray
from marius_oac.torch.tables import Table
from marius_oac.types import BatchData, Plan, TableSpec

_FIRST_ROWS = 256  # that a buffer has room for; it grows


@dataclass(frozen=True, eq=False)
class Fed:
    """A batch of the pipeline.

    Attributes:
        batch_index: its number.
        until: batches of the pass over the loader up to the last of `batches`, without padding.
        batches: of the user's loader.
        keys: of each table.
        padding: so many of `batches`, the last ones, are padding.
    """

    batch_index: int
    until: int
    batches: Sequence[Any]
    keys: Sequence[KeyArray]
    padding: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class LoopBatch(BatchData):
    """What the step needs.

    Attributes:
        fed: the user's batches.
        distinct: of each table its different keys, in the order of their first occurrence.
        local: of each table, int64 [n]: the place of each key among them.
        order: of each table, int64 [m]: the place of each different key's row among the batch's rows. None until rows
            are assigned.
        changed: numbers of the tables whose rows an optimizer has changed.
    """

    fed: Fed
    distinct: Sequence[DistinctKeys]
    local: Sequence[np.ndarray]
    order: list[np.ndarray] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class LoopPlan(Plan[LoopBatch]):
    """A plan whose new keys may have no rows yet; `ids`, int64 [m] of each table, are -1 there."""

    ids: Sequence[np.ndarray] = ()


class LoopPlanner:
    """Plans what is in `feed`, in its order; to be called by one plan worker."""

    def __init__(self, tables: Sequence[Table], feed: Channel[Fed]):
        self._tables, self._feed = tables, feed
        self.tables = [TableSpec(table.name, table.capacity, min(_FIRST_ROWS, table.capacity)) for table in tables]

    def plan(self, batch_index: int) -> Plan[Any]:
        """The next batch of the feed. Raises Closed after the last one, which ends the run."""
        fed = self._feed.get()
        if fed.batch_index != batch_index:
            raise RuntimeError(f"batch {fed.batch_index} was fed in the place of {batch_index}")
        distinct = [DistinctKeys.of(table.name, *keys) for table, keys in zip(self._tables, fed.keys, strict=True)]
        return self._planned(fed, distinct)

    def _planned(self, fed: Fed, distinct: Sequence[DistinctKeys]) -> Plan[Any]:
        ids = [table.find(each) for table, each in zip(self._tables, distinct, strict=True)]
        local = [each.numbers.astype(np.int64) for each in distinct]
        return LoopPlan(fed.batch_index, (), LoopBatch(fed=fed, distinct=distinct, local=local), 1, ids)

    def assign_rows(self, plan: Plan[Any]) -> Plan[Any]:
        """Gives rows to new keys."""
        assert isinstance(plan, LoopPlan)
        rows = []
        for table, each, ids in zip(self._tables, plan.data.distinct, plan.ids, strict=True):
            if ids.size and ids.min() < 0:
                table.admit(each, ids)
            rows.append(relabel(ids, max(table.end, 1)))
            plan.data.order.append(ids)
        return Plan(plan.batch_index, rows, plan.data, plan.examples)
