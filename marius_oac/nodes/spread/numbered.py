"""Rows that are numbered, such as the nodes of a graph, spread over nodes: a row's number says where it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from marius_oac.data.batches.rank_slice import SlicedPlanner
from marius_oac.errors import CheckpointError
from marius_oac.evaluation.scores import EntityReader
from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.part_planner import Gathered
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.spread.contract import Part, SpreadRows, digest_rows, of_one_plan
from marius_oac.nodes.spread.handover import Handover
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.rows import NumberedTables
from marius_oac.runs.stores import Tables
from marius_oac.runtime.machine.binding import Binding
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore, RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.placement import IdPlaces, Placement
from marius_oac.storage.snapshots import PARTS
from marius_oac.types import Plan, present


@dataclass(frozen=True)
class PlacedInitial(RowInitial):
    """The initial values of the rows on one node: those of the ids that lie there.

    Attributes:
        of_ids: the initial values of all ids.
        places, place: the placement of the ids, and the node's number in it.
    """

    recordable: ClassVar[bool] = False
    of_ids: RowInitial = field(kw_only=True)
    places: IdPlaces = field(kw_only=True)
    place: int = field(kw_only=True)

    def fill(self, keys: np.ndarray, rows: np.ndarray, dimension: int) -> None:
        """See `RowInitial.fill`; `keys` are rows of the node."""
        self.of_ids.fill(self.places.ids_on(self.place, keys), rows, dimension)


@dataclass(eq=False, kw_only=True)
class NumberedRows(NumberedTables, SpreadRows):
    """`NumberedTables` of which this process has a part."""

    part: Part

    @cached_property
    def places(self) -> IdPlaces:
        """The placement of the ids."""
        return IdPlaces(self.count, self.part.placement)

    def make_tables(self, stack: ExitStack, folder: Path | None, binding: Binding) -> Sequence[NumberedTable]:
        """See `SpreadRows.make_tables`."""
        rows = dict.fromkeys(self.layouts, self.places.num_rows(self.part.own))
        tables = Tables(self.storage, folder, self.layouts, rows, stack, binding)
        found = []
        for name, initial in self.initials.items():
            placed = PlacedInitial(**vars(initial.plain), of_ids=initial, places=self.places, place=self.part.own)
            found.append(NumberedTable(tables.make(name, rows[name], placed), RowOptimizer(self.optimizer)))
        return found

    def planner(self, stack: ExitStack) -> SlicedPlanner:
        """See `SpreadRows.planner`."""
        return self.make_planner(stack)

    def routed(self, plan: Plan[Any]) -> RoutedPlan:
        """See `SpreadRows.routed`."""
        return RoutedPlan.of(plan, [self.places.route(rows) for rows in plan.rows])

    def gathered(self, plans: Sequence[Plan[Any]]) -> Gathered:
        """See `SpreadRows.gathered`."""
        if len(plans) == 1:
            return of_one_plan(self.routed(plans[0]))
        found, places = [], [list[np.ndarray]() for _ in plans]
        for table in range(len(self.layouts)):
            own = [plan.rows[table] for plan in plans]
            index = np.concatenate(own)
            found.append(relabel(index, self.count).copy())
            for at, each in zip(places, np.split(index, np.cumsum([rows.size for rows in own])[:-1]), strict=True):
                at.append(each)
        return [self.places.route(rows) for rows in found], found, places

    def shards(self, plan: Plan[Any]) -> list[np.ndarray]:
        """See `SpreadRows.shards`."""
        return [self.places.shard_of(rows) for rows in plan.rows]

    def known(self) -> tuple[np.ndarray, RowLayout] | None:
        """See `SpreadRows.known`."""
        return next(((self.places.shard_sizes, layout) for layout in self.layouts.values()), None)

    @property
    def held(self) -> int:
        """See `SpreadRows.held`."""
        return 0 if self.part.place is None else self.places.num_rows(self.part.place)

    def readers(self, source: RemoteSource) -> list[EntityReader]:
        """See `SpreadRows.readers`."""

        def reader(table: int, values: ValueFormat) -> EntityReader:
            def look_up(rows: np.ndarray) -> np.ndarray:
                return source.look_up(table, self.places.route(rows))[0]

            return EntityReader(self.count, values.dimension, look_up)

        return [reader(*each) for each in enumerate(self.formats)]

    def digests(self, store: ParameterStore) -> dict[int, str]:
        """See `SpreadRows.digests`."""
        return {
            int(shard): digest_rows(store, np.array(self.places.rows_of(shard)), lambda rows: b"")
            for shard in self.part.placement.shards_of(self.part.own)
        }

    def take(
        self, parts: Sequence[Checkpoint], before: Placement, stores: Sequence[ParameterStore], handover: Handover
    ) -> None:
        """See `SpreadRows.take`; each process reads its own rows."""
        theirs, of_name = IdPlaces(self.count, before), {store.name: store for store in stores}
        for store in stores:
            store.resize(store.num_rows)  # all rows are loaded: they need no initial values
        for name in self.layouts:
            for node, part in enumerate(parts):
                handover.agreed(partial(self._take_own, part, name, theirs, node, of_name.get(name)))

    def _take_own(self, part: Checkpoint, name: str, theirs: IdPlaces, node: int, store: ParameterStore | None) -> None:
        """Loads this process's rows of a table from the part of one node; None: it carries none. Raises CheckpointError
        if the table is damaged, or has another shape."""
        saved, total, layout = part.table(name), theirs.num_rows(node), self.layouts[name]
        found = [saved.rows(each).shape for each in PARTS]
        if found != [(total, layout.dimension), (total, layout.state_width), (total,)]:
            raise CheckpointError(f"is damaged: {name} has not the rows that belong to each node", part.path)
        for first in range(0, total if store is not None else 0, ROWS_PER_BLOCK):
            there = np.arange(first, min(first + ROWS_PER_BLOCK, total))
            owners, numbers = self.places.find(theirs.ids_on(node, there))
            own = np.flatnonzero(owners == self.part.place)
            if own.size:
                rows, timestamps = saved.read(there[own])
                saved.check_timestamps(timestamps)
                _load(present(store), numbers[own], timestamps, rows)

    def state_arrays(self) -> dict[str, np.ndarray]:
        """None: the placement says where rows lie."""
        return {}

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Nothing: see `state_arrays`."""

    def before_epoch(self, epoch: int) -> None:
        """Nothing: numbered rows stay."""

    def counts(self) -> dict[str, int]:
        """None: the number of rows is the graph's."""
        return {}


def _load(store: ParameterStore, numbers: np.ndarray, timestamps: np.ndarray, rows: np.ndarray) -> None:
    """Sets rows of these numbers. Those of a virtual shard lie together."""
    for run in np.split(np.arange(numbers.size), np.flatnonzero(np.diff(numbers) != 1) + 1):
        store.load(int(numbers[run[0]]), timestamps[run], rows[run])
