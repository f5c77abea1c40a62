"""What training over nodes asks of a task's rows: the tables of a process, the nodes of a batch's rows, their state.

A task describes its rows once (`Task.tables`); `spread` makes these of them, and `nodes.sharded.home` trains with them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.data.batches.rank_slice import RankSlice, SlicedPlanner
from marius_oac.data.logs.together import Exchange, OwnSpans
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.part_planner import Gathered
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.spread.handover import Handover
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runtime.machine.binding import Binding
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore, RowLayout
from marius_oac.storage.placement import Placement
from marius_oac.types import present


@dataclass(frozen=True)
class Part:
    """The part of all rows that one process carries.

    Attributes:
        placement: of the virtual shards, on the processes that carry rows.
        place: this process's number among them; None: it carries none.
    """

    placement: Placement
    place: int | None

    @property
    def own(self) -> int:
        """`place`, of a process that carries rows."""
        return present(self.place)


class SpreadRows(ABC):
    """A task's rows over nodes. One thread at a time calls it, but for `routed` and `shards`, which any number may.

    Attributes:
        part: what this process carries.
        layouts: of each table's rows, by name, in the order of a plan's rows.
    """

    part: Part
    layouts: Mapping[str, RowLayout]

    @property
    def formats(self) -> list[ValueFormat]:
        """How messages hold the values of each table's rows."""
        return [ValueFormat.of(layout) for layout in self.layouts.values()]

    @abstractmethod
    def make_tables(self, stack: ExitStack, folder: Path | None, binding: Binding) -> Sequence[ShardTable]:
        """Makes the tables of the rows that this process carries; `stack` closes them. `folder`: of the run."""

    @abstractmethod
    def planner(self, stack: ExitStack) -> SlicedPlanner:
        """Makes a planner of the batches, whose `share` is set afterwards; its `assign_rows` is not called."""

    def read_together(
        self, planner: SlicedPlanner, shares: Sequence[Sequence[RankSlice]], trainer: int, exchange: Exchange
    ) -> tuple[SlicedPlanner, OwnSpans] | None:
        """See `LogPlanner.read_together`; None: each trainer reads by itself."""
        return None

    @abstractmethod
    def routed(self, plan: Any) -> RoutedPlan:
        """Returns the plan with the route to its rows."""

    @abstractmethod
    def gathered(self, plans: Sequence[Any]) -> Gathered:
        """Returns the routes to all rows of some plans, of each table; these rows; and of each plan and table the
        places of its rows among them, int64 [n]."""

    @abstractmethod
    def shards(self, plan: Any) -> list[np.ndarray]:
        """Returns the virtual shard of each row that a plan reads, int64 [n], for each table."""

    @abstractmethod
    def known(self) -> tuple[np.ndarray, RowLayout] | None:
        """Returns the number of rows of each virtual shard, int64 [V], and their layout; None if there are no rows, or
        training finds them."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Rows of each table that this process carries; 0: none, or unknown before training."""

    @abstractmethod
    def readers(self, source: RemoteSource) -> Sequence[Any]:
        """Returns what an evaluation reads each table with, over all nodes (`Components.readers`)."""

    @abstractmethod
    def digests(self, store: ParameterStore) -> dict[int, str]:
        """Returns the SHA-256 of each virtual shard in a store of this process."""

    @abstractmethod
    def take(
        self, parts: Sequence[Checkpoint], before: Placement, stores: Sequence[ParameterStore], handover: Handover
    ) -> None:
        """Loads the rows that this process carries from the parts of other processes, with their placement. Collective;
        a process that carries none has no `stores`."""

    @abstractmethod
    def state_arrays(self) -> Mapping[str, np.ndarray]:
        """Returns the arrays that a checkpoint of this process needs to find its rows again, by name."""

    @abstractmethod
    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores what `state_arrays` returned; called before the rows are loaded."""

    @abstractmethod
    def before_epoch(self, epoch: int) -> None:
        """Drops the rows of this process that the epoch begins without; nothing else uses the tables meanwhile."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Returns figures of this process's tables, by name; the summary has their sums."""


def of_one_plan(plan: RoutedPlan) -> Gathered:
    """Returns what `SpreadRows.gathered` does of a single plan, whose rows are different ones."""
    return plan.routes, plan.rows, [[np.arange(rows.size) for rows in plan.rows]]


def digest_rows(store: ParameterStore, rows: np.ndarray, names: Callable[[np.ndarray], bytes]) -> str:
    """SHA-256 of the names, values and states (float32) of some rows, in the given order."""
    digest = hashlib.sha256()
    for first in range(0, rows.size, ROWS_PER_BLOCK):
        part = rows[first : first + ROWS_PER_BLOCK]
        unique, back = np.unique(part, return_inverse=True)
        values = np.empty((unique.size, store.layout.width), np.float32)
        store.read(unique, values, np.empty(unique.size, np.int64))
        digest.update(names(part))
        digest.update(values[back].astype("<f4").tobytes())
    return digest.hexdigest()
