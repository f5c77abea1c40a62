"""Link prediction with the entities' rows spread over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.rank_slice import SlicedPlanner
from marius_oac.data.prepare.splits import Split
from marius_oac.errors import ConfigError
from marius_oac.evaluation.scores import EntityReader
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.gnn.step import EncodedStep
from marius_oac.models.link_prediction.step import LinkPredictionStep
from marius_oac.nodes.shards.placement import IdPlaces
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.sharded.checkpoint import digest_rows, load_rows
from marius_oac.runs.sharded.task import ShardedTask
from marius_oac.runs.stores import Tables
from marius_oac.runs.task import Components
from marius_oac.runtime.machine.binding import Binding
from marius_oac.storage.contract import ParameterStore, RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.tasks.graph import entity_initial, entity_layout
from marius_oac.tasks.link_prediction.memory import plan_memory
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.types import Plan


@dataclass(frozen=True)
class PlacedInitial(RowInitial):
    """The initial values of the rows on one node: those of the ids that lie there."""

    places: IdPlaces = field(kw_only=True)
    place: int = field(kw_only=True)

    def fill(self, keys: np.ndarray, rows: np.ndarray, dimension: int) -> None:
        """See `RowInitial.fill`; `keys` are rows of the node."""
        super().fill(self.places.ids_on(self.place, keys), rows, dimension)


class ShardedGraphTask(ShardedTask):
    """Trains a `GraphTask` over nodes."""

    config: Config
    task: GraphTask

    @property
    def places(self) -> IdPlaces:
        """The placement of the entities."""
        return IdPlaces(self.task.graph.num_nodes, self.placement)

    def table_names(self) -> list[str]:
        """See `ShardedTask.table_names`."""
        return [table.name for table in self.task.planner.tables]

    def _check(self) -> None:
        training = self.config.training
        if training.negatives.all:
            raise ConfigError(
                "over several nodes every batch would move all rows; sample them", "training.negatives.all"
            )
        if self.config.encoder:
            raise ConfigError("an encoder is trained on one machine; leave it out, or train without nodes", "encoder")
        if training.ordering.kind != "shuffle":
            raise ConfigError("a partition ordering is for one node's disk", "training.ordering.kind")

    def _tables(self, stack: ExitStack, binding: Binding) -> Sequence[NumberedTable]:
        (name,), layout = self.table_names(), entity_layout(self.config)
        rows = {name: self.places.num_rows(self.own_place)}
        place = Tables(self.config.storage, self.folder, {name: layout}, rows, stack, binding)
        plain = entity_initial(self.config, name)
        initial = PlacedInitial(**vars(plain), places=self.places, place=self.own_place)
        store = place.make(name, rows[name], initial)
        return [NumberedTable(store, RowOptimizer(self.config.training.optimizer))]

    def _dimensions(self) -> list[int]:
        return [entity_layout(self.config).dimension]

    def _planner(self, stack: ExitStack) -> SlicedPlanner:
        return self.task.planner

    def _routed(self, plan: Plan) -> RoutedPlan:
        return RoutedPlan.of(plan, [self.places.route(plan.rows[0])])

    def _shards(self, plan: Plan) -> list[np.ndarray]:
        return [self.places.shard_of(plan.rows[0])]

    def known_rows(self) -> tuple[np.ndarray, RowLayout]:
        """The entities of each virtual shard, and their layout."""
        return self.places.shard_sizes, entity_layout(self.config)

    def _step(self, device: torch.device, threads: int) -> EncodedStep | LinkPredictionStep:
        return self.task.make_step(device, threads, self._update)

    def _evaluate(self, parts: Components, split: Split, whole: bool) -> dict[str, float]:
        def read(rows: np.ndarray) -> np.ndarray:
            return self._source.look_up(0, self.places.route(rows))[0]

        reader = EntityReader(self.task.graph.num_nodes, entity_layout(self.config).dimension, read)
        return self.task.evaluate_rows(reader, parts, split, whole)

    def _shard_digests(self, store: ParameterStore) -> dict[int, str]:
        return {
            int(shard): digest_rows(store, np.array(self.places.rows_of(shard)), lambda rows: b"")
            for shard in self.placement.shards_of(self.own_place)
        }

    def _take_rows(self, whole: Checkpoint, parts: Components) -> None:
        (store,) = parts.stores
        rows = np.arange(store.num_rows)
        load_rows(store, whole, self.places.ids_on(self.own_place, rows))

    def _all_row_bytes(self) -> int:
        here = 0 if self.place is None else self.places.num_rows(self.place)
        return here * entity_layout(self.config).row_bytes

    def plan_memory(self, folder: Path) -> MemoryPlan:
        """See `Task.plan_memory`."""
        here = 0 if self.place is None else self.places.num_rows(self.place)
        return plan_memory(self.config, self.task.graph, folder, here)
