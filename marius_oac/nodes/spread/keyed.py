"""Rows that belong to keys, such as the features of a click log, spread over nodes: a key's hash says where its row
lies, and the node that carries it numbers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from marius_oac.data.batches.rank_slice import RankSlice, SlicedPlanner
from marius_oac.data.logs.batches import LogPlan, LogPlanner
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.data.logs.together import Exchange, OwnSpans
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.part_planner import Gathered
from marius_oac.nodes.shards.pooling import pool_table, spans_of
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.nodes.shards.table import KeyedTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.spread.contract import Part, SpreadRows, digest_rows, of_one_plan
from marius_oac.nodes.spread.handover import Handover, cut, row_bytes
from marius_oac.nodes.spread.key_move import KeyMove, shard_of_rows
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.rows import KeyedTables
from marius_oac.runtime.machine.binding import Binding
from marius_oac.storage.contract import ParameterStore
from marius_oac.storage.key_tables import key_arrays, key_counts, load_key_arrays, shared_by_shard
from marius_oac.storage.keys.table import KeyTable
from marius_oac.storage.placement import FEWEST_SHARDS, Placement, Route, route_keys, shard_of_keys, unique_keys


class BatchKeys:
    """Numbers the keys of each batch; a planner uses it instead of a `KeyTable`."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        """No batch has more of them."""

    def find(self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> np.ndarray:
        """Numbers different keys, in their order: int64 [m]."""
        return np.arange(keys.size)


class RemoteKeys:
    """Looks up rows by key on other nodes, without changing them."""

    def __init__(self, source: RemoteSource, table: int, placement: Placement):
        self._source, self._table, self._placement = source, table, placement

    def look_up(
        self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `KeyTable.look_up`."""
        local, firsts = unique_keys(vocabularies, keys, checks)
        route = route_keys(self._placement, vocabularies[firsts], keys[firsts], checks[firsts])
        values, known = self._source.look_up(self._table, route)
        return values, local, ~known[local]


@dataclass(eq=False, kw_only=True)
class KeyedRows(KeyedTables, SpreadRows):
    """`KeyedTables` of which this process has a part."""

    part: Part
    _key_tables: list[KeyTable] = field(default_factory=list, init=False)

    @property
    def formats(self) -> list[ValueFormat]:
        """See `SpreadRows.formats`."""
        pairs = zip(self.tables, self.layouts.values(), strict=True)
        return [ValueFormat.of(layout, bool(self._bags(table))) for table, layout in pairs]

    def make_tables(self, stack: ExitStack, folder: Path | None, binding: Binding) -> Sequence[KeyedTable]:
        """See `SpreadRows.make_tables`."""
        if self.admit_after > 1 and self.part.placement.num_shards > FEWEST_SHARDS:
            raise ValueError("keys that share a row would lie on several nodes")
        self._key_tables[:] = self.make_key_tables(stack, folder, binding, (shared_by_shard,))
        optimizer = RowOptimizer(self.optimizer)
        return [
            KeyedTable(keys, optimizer, self.penalty, bool(self._bags(table)), self.file_of)
            for keys, table in zip(self._key_tables, self.tables, strict=True)
        ]

    def planner(self, stack: ExitStack) -> SlicedPlanner:
        """See `SpreadRows.planner`."""
        return self.make_planner(stack, [BatchKeys(most) for most in self.most_keys])

    def read_together(
        self, planner: SlicedPlanner, shares: Sequence[Sequence[RankSlice]], trainer: int, exchange: Exchange
    ) -> tuple[SlicedPlanner, OwnSpans] | None:
        """See `SpreadRows.read_together`."""
        return cast(LogPlanner, planner).read_together(shares, trainer, exchange)

    def _bags(self, table: FeatureTable) -> list[str]:
        """The bags of a table that the nodes pool."""
        return [name for name in table.bags if name in self.pooled]

    def routed(self, plan: LogPlan) -> RoutedPlan:
        """See `SpreadRows.routed`."""
        routes, rows, tables = [], [], []
        of_table = zip(self.tables, plan.keys, plan.distinct, plan.rows, plan.data.tables, strict=True)
        for table, keys, distinct, own, indices in of_table:
            asked: Sequence[np.ndarray] = distinct.asked
            pooled = self._bags(table)
            if self.admit_after > 1:
                times = distinct.counts * (plan.data.share > 0)  # else it is another's example
                asked = (*asked, times.astype(np.uint32))
            if pooled:
                route: Route
                route, indices = pool_table(
                    table, pooled, keys, distinct.numbers.astype(np.int64), asked, self.part.placement
                )
                own = np.arange(route.order.size)
            else:
                route = route_keys(self.part.placement, *asked)
            routes.append(route)
            rows.append(own)
            tables.append(indices)
        return RoutedPlan.of(plan, routes, rows=rows, data=replace(plan.data, tables=tuple(tables)))

    def gathered(self, plans: Sequence[LogPlan]) -> Gathered:
        """See `SpreadRows.gathered`; neither keys that are admitted late nor pooled bags."""
        if len(plans) == 1:
            return of_one_plan(self.routed(plans[0]))
        routes, found, places = [], [], [list[np.ndarray]() for _ in plans]
        for table in range(len(self.tables)):
            own = [plan.distinct[table].asked for plan in plans]
            every = [np.concatenate(each) for each in zip(*own, strict=True)]
            numbers, firsts = unique_keys(*every)
            routes.append(route_keys(self.part.placement, *(each[firsts] for each in every)))
            found.append(np.arange(firsts.size))
            ends = np.cumsum([keys.size for _, keys, _ in own])[:-1]
            for at, each in zip(places, np.split(numbers, ends), strict=True):
                at.append(each)
        return routes, found, places

    def shards(self, plan: LogPlan) -> list[np.ndarray]:
        """See `SpreadRows.shards`."""
        found = []
        for table, keys, distinct in zip(self.tables, plan.keys, plan.distinct, strict=True):
            vocabularies, numbers, _ = distinct.asked
            shards = shard_of_keys(vocabularies, numbers, self.part.placement.num_shards)
            spans = spans_of(table, keys)
            # A node that pools reads a row for every bag that contains it.
            found.append(
                np.concatenate([shards, *(shards[distinct.numbers[spans[name]]] for name in self._bags(table))])
            )
        return found

    def known(self) -> None:
        """None: training finds the keys."""
        return None

    @property
    def held(self) -> int:
        """0: unknown before training."""
        return 0

    def readers(self, source: RemoteSource) -> list[RemoteKeys]:
        """See `SpreadRows.readers`."""
        return [RemoteKeys(source, number, self.part.placement) for number in range(len(self.tables))]

    def digests(self, store: ParameterStore) -> dict[int, str]:
        """See `SpreadRows.digests`; the rows of a shard in the order of vocabularies and keys."""
        index = next(each for each in self._key_tables if each.store is store).index
        rows = np.arange(len(index))
        rows = rows[~index.is_free(rows)]
        vocabularies, numbers = index.vocabularies_of(rows), index.keys_of(rows)
        order = np.lexsort((numbers, vocabularies))
        shards = shard_of_rows(vocabularies[order], numbers[order], self.part.placement.num_shards)
        rows = rows[order][by_shard := np.argsort(shards, kind="stable")]
        different, firsts = np.unique(shards[by_shard], return_index=True)

        def names(part: np.ndarray) -> bytes:
            return index.vocabularies_of(part).astype("<u2").tobytes() + index.keys_of(part).astype("<i8").tobytes()

        every = zip(different.tolist(), np.split(rows, firsts)[1:], strict=True)
        return {shard: digest_rows(store, of_shard, names) for shard, of_shard in every}

    def take(
        self, parts: Sequence[Checkpoint], before: Placement, stores: Sequence[ParameterStore], handover: Handover
    ) -> None:
        """See `SpreadRows.take`; rows keep the order of the parts, without free ones."""
        own = {keys.store.name: keys for keys in self._key_tables} if stores else {}
        for name, layout in self.layouts.items():
            move = KeyMove(name, parts, self.part.placement, handover)
            arrays = move.keys()
            if name in own:
                own[name].load(arrays)
            for first, rows in move.rows(row_bytes(layout)):
                own[name].store.load(first, *cut(rows))

    def state_arrays(self) -> dict[str, np.ndarray]:
        """See `SpreadRows.state_arrays`: the keys of each table, as `TABLE.NAME`."""
        return key_arrays(self._key_tables)

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See `SpreadRows.load_state_arrays`."""
        load_key_arrays(self._key_tables, arrays)

    def before_epoch(self, epoch: int) -> None:
        """See `SpreadRows.before_epoch`."""
        for keys in self._key_tables:
            keys.drop_unseen(self.first_file(epoch))

    def counts(self) -> dict[str, int]:
        """See `SpreadRows.counts`."""
        return key_counts(self._key_tables)
