"""What all training on graphs has in common: the nodes' rows, and the order of batches."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.config.parts import own_file
from marius_oac.data.batches.edges import EdgePlanner, GraphPlanner, ReorderedPlanner
from marius_oac.data.batches.nodes import NodePlanner
from marius_oac.data.batches.rank_slice import WHOLE, RankSlice
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph
from marius_oac.errors import InputError
from marius_oac.evaluation.scores import EntityReader
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.models.compute import own_initial
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.update import Update
from marius_oac.runs.peers import Peers
from marius_oac.runs.rows import NumberedTables
from marius_oac.runs.segments import LocalSegments
from marius_oac.runs.stores import Tables
from marius_oac.runs.task import Components, Task
from marius_oac.runtime.files.untrusted_arrays import read_npy
from marius_oac.runtime.machine import cgroups
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import GivenInitial, RowInitial
from marius_oac.types import Planner, Step

GraphConfig = Config | NodeClassificationConfig
_LEAST_EDGE_BYTES = 64 << 20
_CHECKED_ROWS = 40  # of those that a user's function gives values to


class TaskOnGraph(Task):
    """A task that is trained on a graph.

    Attributes:
        graph: what is trained on.
    """

    config: GraphConfig
    graph: Graph

    @property
    @abstractmethod
    def planner(self) -> EdgePlanner | NodePlanner:
        """Plans the batches of shuffled examples."""

    def _planner(self, stack: ExitStack) -> GraphPlanner | NodePlanner:
        """The planner to train with."""
        return self.planner

    def _check_order(self) -> None:
        """Raises InputError if a recorded order to follow has fewer batches than are to be trained."""
        needed, order = self.schedule.last, self.config.pipeline.order
        if order not in ("plan", "arrival") and (recorded := len(read_order(order))) < needed:
            raise InputError(f"{recorded:,} batches are recorded, {needed:,} are to be trained", order)

    def row_bytes(self) -> int:
        """See `Task.row_bytes`."""
        return sum(entity_layout(self.config).row_bytes * table.num_rows for table in self.planner.tables)

    def before_epoch(self, parts: Components, epoch: int, among: Sharing = UNSHARED) -> None:
        """None: nothing is measured."""

    def predicted(self, step: Step, among: Peers) -> dict[str, float]:
        """Nothing."""
        return {}

    def check_data_from(self, batch_index: int) -> None:
        """Nothing: the fingerprint of the graph says that it is the same."""

    def check_unchanged(self) -> None:
        """See `Task.check_unchanged`."""
        self.graph.check_unchanged()

    def check_new_data(self, first: int, share: RankSlice = WHOLE) -> None:
        """Nothing: a graph does not grow."""

    def learned_files(self) -> Mapping[str, str]:
        """None: the run's files don't change."""
        return {}

    def state_arrays(self) -> Mapping[str, np.ndarray]:
        """None: all state is in rows and dense parameters."""
        return {}

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Nothing: see `state_arrays`."""

    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        """See `Task.build`."""
        planner = self._planner(stack)
        rows = {table.name: table.num_rows for table in planner.tables}
        layouts = {name: entity_layout(self.config) for name in rows}
        place = Tables(self.config.storage, self.folder, layouts, rows, stack, binding)
        stores = [place.make(name, count, entity_initial(self.config, name, count)) for name, count in rows.items()]
        step = self.make_step(device, threads, Update.here(self.config.training.optimizer))
        stack.callback(step.close)
        readers = [EntityReader.of_store(store) for store in stores]
        return Components(in_order(self.config, planner), stores, step, device, readers, LocalSegments())

    def tables(self) -> NumberedTables:
        """See `Task.tables`; a row for each of the graph's nodes."""
        config, count = self.config, self.graph.num_nodes
        layouts = {table.name: entity_layout(config) for table in self.planner.tables}
        initials = {name: entity_initial(config, name, count) for name in layouts}
        return NumberedTables(
            count=count, layouts=layouts, initials=initials, storage=config.storage,
            optimizer=config.training.optimizer, make_planner=self._planner,
        )  # fmt: skip


def entity_layout(config: GraphConfig) -> RowLayout:
    """Returns the layout of the entities' table, which there is unless `config.row_dimension` is 0."""
    dimension = config.row_dimension
    state = RowOptimizer(config.training.optimizer).state_width(dimension)
    return RowLayout(dimension, state, config.storage.dtype)


def edges_in_memory(edges: np.ndarray) -> int:
    """Returns how many bytes of the training edges may be in memory at a time: all, if they are few."""
    return min(edges.nbytes, max(_LEAST_EDGE_BYTES, cgroups.free_memory() // 4))


def in_order(config: GraphConfig, planner: GraphPlanner | NodePlanner) -> Planner:
    """Returns the planner, whose batches follow the recorded order, if one is configured."""
    order = config.pipeline.order
    return planner if order in ("plan", "arrival") else ReorderedPlanner(planner, read_order(order))


def read_order(path: str) -> np.ndarray:
    """Reads a recorded computation order, int64 [batches]: entry t is the batch that was computed t-th."""
    try:
        order = read_npy(Path(path), (np.int64,), (None,))
    except InputError as error:
        raise InputError(f"order 'plan', 'arrival' or a recorded order.npy is needed: {error.message}", path) from None
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise InputError("is not the order of a run: each batch must stand in it once", path)
    return order


def order_fingerprint(path: str) -> dict[str, str]:
    """Returns the digest of the recorded order to follow by its key, empty if there is none; see `data.identity`."""
    if path in ("plan", "arrival"):
        return {}
    return {identity.ORDER: hashlib.sha256(read_order(path).astype("<i8").tobytes()).hexdigest()}


def entity_initial(config: GraphConfig, name: str, count: int) -> RowInitial:
    """Returns the initial values of a table of `count` entities, a pure function of (seed, table, row).

    Raises:
        ConfigError: the user's function can't be loaded, or returns what can't be initial values.
    """
    model, state = config.model, RowOptimizer(config.training.optimizer).initial_state
    if own_file(model.init) is None:
        return RowInitial(model.init, model.init_scale, config.seed, name, state)
    give = own_initial.load(model.init)
    given = GivenInitial("uniform", 1.0, config.seed, name, state, give=give)
    ids = np.unique(np.linspace(0, count - 1, _CHECKED_ROWS).astype(np.int64))
    numbers = np.empty((ids.size, config.row_dimension), np.float32)
    given.plain.fill(ids, numbers, config.row_dimension)
    own_initial.check(model.init, give, ids, numbers)
    return given
