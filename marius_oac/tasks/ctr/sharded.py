"""Click-through rates with the rows of all keys spread over nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.batches.rank_slice import SlicedPlanner
from marius_oac.data.logs.batches import LogPlan, LogPlanner
from marius_oac.data.logs.tables import FeatureTable, TableKeys
from marius_oac.data.prepare.splits import Split
from marius_oac.errors import ConfigError
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.step import CtrStep
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.placement import Placement, Route, route_keys, shard_of_keys, unique_keys
from marius_oac.nodes.shards.pooling import pool_table, spans_of
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.nodes.shards.table import KeyedTable
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.sharded.checkpoint import digest_rows, load_rows
from marius_oac.runs.sharded.task import ShardedTask
from marius_oac.runs.stores import Tables
from marius_oac.runs.task import Components
from marius_oac.runtime.machine.binding import Binding
from marius_oac.storage.contract import ParameterStore
from marius_oac.tasks.ctr import build
from marius_oac.tasks.ctr.memory import plan_ctr_memory
from marius_oac.tasks.ctr.predict import ClickPredictor, evaluate_files
from marius_oac.tasks.ctr.task import CtrTask


class BatchKeys:
    """Numbers the different keys of each batch; a planner uses it instead of a `KeyTable`."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        """No batch has more of them."""

    def find(self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> np.ndarray:
        """Numbers the keys in the order in which they first occur: int64 [n]."""
        return unique_keys(vocabularies, keys, checks)[0]


class RemoteKeys:
    """Looks up rows by key on other nodes, without changing them."""

    def __init__(self, source: RemoteSource, table: int, placement: Placement):
        self._source, self._table, self._placement = source, table, placement

    def look_up(
        self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """See `KeyTable.look_up`."""
        local, firsts = unique_keys(vocabularies, keys, checks)
        route = route_keys(self._placement, vocabularies[firsts], keys[firsts], checks[firsts])
        values, known = self._source.look_up(self._table, route)
        return values, local, int((~known[local]).sum())


def keys_on(arrays: Mapping[str, np.ndarray], placement: Placement, place: int) -> dict[str, np.ndarray]:
    """Returns the part of one node of `KeyTable.arrays` over all nodes, in the same order."""
    kept: dict[str, np.ndarray] = {}
    for index in ("index", "waiting"):
        if f"{index}.keys" not in arrays:
            continue
        shards = shard_of_keys(arrays[f"{index}.vocabularies"], arrays[f"{index}.keys"])
        here = placement.nodes[shards] == place
        for part in ("keys", "vocabularies", "checks"):
            kept[f"{index}.{part}"] = arrays[f"{index}.{part}"][here]
        kept[f"{index}.free"] = np.zeros(0, np.int64)  # nothing is dropped over nodes
        if index == "waiting":
            kept["seen"] = arrays["seen"][here]
    return kept


def _different(keys: TableKeys, ids: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vocabularies, keys and checks of a batch's `count` different keys; `ids` are the numbers of all keys, int64
    [n]."""
    firsts = np.empty(count, np.int64)
    firsts[ids[::-1]] = np.arange(ids.size)[::-1]
    return keys.vocabularies[firsts], keys.keys[firsts], keys.checks[firsts]


class ShardedCtrTask(ShardedTask):
    """Trains a `CtrTask` over nodes."""

    config: CtrConfig
    task: CtrTask

    @cached_property
    def _network(self) -> Network:
        return build.make_ctr_network(self.config)

    @cached_property
    def _feature_tables(self) -> list[FeatureTable]:
        return build.tables_of(self.config, self._network)

    def table_names(self) -> list[str]:
        """Names of the tables, one for each width of rows."""
        return [table.name for table in self._feature_tables]

    def _check(self) -> None:
        if self.config.keys.drop_after:
            raise ConfigError("dropping keys is for one node", "keys.drop_after")
        if self.config.keys.admit_after > 1 and self.placement.num_nodes > 1:
            # Each node would have a shared row of its own, and the checkpoint the same key more than once.
            raise ConfigError("the row that rare keys share can't lie on several nodes", "keys.admit_after")

    def check_new_data(self, first: int) -> None:
        """See `Task.check_new_data`; every trainer checks its part of the files."""
        peers = self.peers
        share = self.share
        peers.agreed(lambda: self.task.check_rows(first, share.rank, share.count) if self.trains else None)

    def _tables(self, stack: ExitStack, binding: Binding) -> Sequence[KeyedTable]:
        config, training = self.config, self.config.training
        layouts = {table.name: build.row_layout(config, table, self._network) for table in self._feature_tables}
        capacities = {name: build.capacity_of(config, layout) for name, layout in layouts.items()}
        place = Tables(config.storage, self.folder, layouts, capacities, stack, binding)
        self._keys = [build.make_key_table(config, place, name) for name in layouts]
        optimizer = RowOptimizer(training.optimizer)
        return [
            KeyedTable(keys, optimizer, training.embedding_l2, pools=bool(self._pooled(table)))
            for keys, table in zip(self._keys, self._feature_tables, strict=True)
        ]

    def _dimensions(self) -> list[int]:
        return [build.row_layout(self.config, table, self._network).dimension for table in self._feature_tables]

    def _planner(self, stack: ExitStack) -> SlicedPlanner:
        schedule = self.task.log.schedule(self.config.training.batch_size)
        numbers = [BatchKeys(self.config.training.batch_size * table.max_ids) for table in self._feature_tables]
        planner = LogPlanner(
            self.config, self.task.log.files, schedule, self._feature_tables, numbers, self.task.pieces
        )
        stack.callback(planner.close)
        return planner

    def _pooled(self, table: FeatureTable) -> list[str]:
        """The bags of a table that the nodes pool."""
        chosen = [each.name for each in self.config.data.multi_valued if each.pool_at == "shard"]
        return [name for name in table.bags if name in chosen]

    def _routed(self, plan: LogPlan) -> RoutedPlan:
        routes, rows, tables = [], [], []
        of_table = zip(self._feature_tables, plan.keys, plan.ids, plan.rows, plan.data.tables, strict=True)
        for table, keys, ids, own, indices in of_table:
            asked, pooled = _different(keys, ids, own.size), self._pooled(table)
            if pooled:
                route: Route
                route, indices = pool_table(table, pooled, keys, ids, asked, self.placement)
                own = np.arange(route.order.size)
            else:
                route = route_keys(self.placement, *asked)
            routes.append(route)
            rows.append(own)
            tables.append(indices)
        return RoutedPlan.of(plan, routes, rows=rows, data=replace(plan.data, tables=tuple(tables)))

    def _shards(self, plan: LogPlan) -> list[np.ndarray]:
        found = []
        for table, keys, ids, own in zip(self._feature_tables, plan.keys, plan.ids, plan.rows, strict=True):
            vocabularies, numbers, _ = _different(keys, ids, own.size)
            shards, spans = shard_of_keys(vocabularies, numbers), spans_of(table, keys)
            # A node that pools reads a row for every bag that contains it.
            found.append(np.concatenate([shards, *(shards[ids[spans[name]]] for name in self._pooled(table))]))
        return found

    def known_rows(self) -> None:
        """None: training finds the keys."""
        return None

    def _step(self, device: torch.device, threads: int) -> CtrStep:
        return build.make_ctr_step(self.config, self._feature_tables, self._network, device, threads, self._update)

    def _evaluate(self, parts: Components, split: Split, whole: bool) -> dict[str, float]:
        return evaluate_files(self._predictor(parts), self.task.files_of(split))

    def _predictor(self, parts: Components) -> ClickPredictor:
        keys = [RemoteKeys(self._source, number, self.placement) for number in range(len(self._feature_tables))]
        return ClickPredictor(self.config, self._feature_tables, keys, cast(CtrStep, parts.step), parts.device)

    def before_epoch(self, parts: Components, epoch: int) -> dict[str, float] | None:
        """In a progressive run predicts the next file and returns the metrics; else returns None."""
        if not self.config.training.progressive:
            return None
        file = self.task.first_file(epoch)
        return self.peers.from_lead(lambda: self.task.metrics_of(file, self._predictor(parts)))

    def _take_rows(self, whole: Checkpoint, parts: Components) -> None:
        arrays = whole.arrays()
        for keys in self._keys:
            prefix = f"{keys.store.name}."
            own = {name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)}
            keys.load(keys_on(own, self.placement, self.own_place))
            numbers, vocabularies = own["index.keys"], own["index.vocabularies"]
            here = self.placement.nodes[shard_of_keys(vocabularies, numbers)] == self.place
            load_rows(keys.store, whole, np.flatnonzero(here))

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Where rows lie, and the keys of the rows of this process."""
        named = ((keys.store.name, keys) for keys in self._keys) if self.place is not None else ()
        return super().state_arrays() | {
            f"{table}.{name}": array for table, keys in named for name, array in keys.arrays().items()
        }

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See `Task.load_state_arrays`."""
        for keys in self._keys if self.place is not None else ():
            prefix = f"{keys.store.name}."
            keys.load({name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)})

    def _shard_digests(self, store: ParameterStore) -> dict[int, str]:
        keys = next(each for each in self._keys if each.store is store)
        rows = np.arange(len(keys.index))
        vocabularies, numbers = keys.index.vocabularies_of(rows), keys.index.keys_of(rows)
        order = rows[np.lexsort((numbers, vocabularies))]
        shards = shard_of_keys(vocabularies[order], numbers[order])

        def names(part: np.ndarray) -> bytes:
            return vocabularies[part].astype("<u2").tobytes() + numbers[part].astype("<i8").tobytes()

        return {int(shard): digest_rows(store, order[shards == shard], names) for shard in np.unique(shards)}

    def plan_memory(self, folder: Path) -> MemoryPlan:
        """See `Task.plan_memory`."""
        return plan_ctr_memory(self.config, folder)
