"""A task whose rows are spread over nodes: how it is built, and how its processes stay in step.

Every process runs the same training loop. What only one of them knows (a metric, a request to stop) is sent to all
before anything depends on it, so all take the same decisions.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from marius_oac import __version__
from marius_oac.config.modes import ModeName
from marius_oac.data.batches.rank_slice import RankSlice, SlicedPlanner, with_share
from marius_oac.data.prepare.splits import Split
from marius_oac.models.compute.update import Update
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.served import Served, bounds_of
from marius_oac.nodes.dense.sync_server import SyncServers
from marius_oac.nodes.gba.counts import dispatch_metrics
from marius_oac.nodes.gba.modes import make_mode
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.shards.dispatched_rows import DispatchedRows, Dispatching
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.packing import LookupCost, Packed, even
from marius_oac.nodes.shards.placement import NUM_SHARDS, Placement
from marius_oac.nodes.shards.routed import RoutedPlan, RoutedPlanner
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.sharded.checkpoint import DENSE, PACKING, PLACE, PLACEMENT, SERVES, layout_name
from marius_oac.runs.sharded.dense import adapted, load_dense, share_dense
from marius_oac.runs.sharded.peers import ClusterPeers
from marius_oac.runs.sharded.place import check_config
from marius_oac.runs.sharded.speed_monitor import SpeedMonitor
from marius_oac.runs.task import Components, Task
from marius_oac.runs.wrapped import WrappedTask
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.runtime.progress import Progress
from marius_oac.storage.contract import ParameterStore, RowLayout
from marius_oac.types import Plan, Step, present

Connect = Callable[[ExitStack, Sequence[ShardTable], Sequence[int], Callable[[Plan], float], Binding], RemoteSource]
"""Serves the tables of this process, if it has any, and connects to those of all processes."""


class ShardedTask(WrappedTask):
    """A task whose rows are spread over nodes.

    Args:
        task: what is trained.
        group: of all processes.
        weights: of each process, by rank: its share of the rows relative to the others'; 0: it carries none.
        make_dense: makes what synchronises dense parameters, given the connections to the sync servers.
        connect: serves the tables of this process and connects to all.
        crowd: which processes train; None: all of the group, and no others.

    Attributes:
        place: this process's number among those that carry rows; None: it carries none.
        packed: the placement of rows, by the hash alone until it is set; to be set before `plan_memory` and `build`.
    """

    def __init__(
        self,
        task: Task,
        group: Group,
        weights: Sequence[float],
        make_dense: Callable[[SyncServers], DenseAgreement],
        connect: Connect,
        crowd: Crowd | None = None,
    ):
        super().__init__(task)
        self.group = group
        self.crowd = crowd or Crowd([True] * len(weights))
        self.trainers = self.crowd.trainers
        self.weights, self._make_dense, self._connect = weights, make_dense, connect
        self.place = sum(each > 0 for each in weights[: group.rank]) if weights[group.rank] else None
        self.packed = Packed(even(self.carried))
        self.speed_monitor = SpeedMonitor(task.config.nodes, group.rank, self.trainers, task.config.training.batch_size)
        self._dense: DenseAgreement | None = None
        self._remote: RemoteSource | None = None
        self._outside = 0, 0.0
        self.peers: ClusterPeers = ClusterPeers(group)

    over_nodes = True

    @property
    def dense(self) -> DenseAgreement:
        """The synchronisation of dense parameters; set by `build`."""
        return present(self._dense)

    @property
    def _source(self) -> RemoteSource:
        """The rows on all nodes; set by `build`."""
        return present(self._remote)

    @property
    def own_place(self) -> int:
        """`place`, of a process that carries rows."""
        return present(self.place)

    @property
    def trains(self) -> bool:
        """Whether this process is a trainer."""
        return self.crowd.trains[self.group.rank]

    @property
    def share(self) -> RankSlice:
        """This process's part of each batch in lockstep."""
        return RankSlice(self.crowd.peer(self.group.rank) if self.trains else 0, self.crowd.within)

    @property
    def serves(self) -> bool:
        """Whether this process carries rows."""
        return self.place is not None

    @property
    def carried(self) -> list[float]:
        """Weights of the processes that carry rows."""
        return [each for each in self.weights if each]

    @property
    def placement(self) -> Placement:
        """Virtual shards to the processes that carry rows, numbered in the order of their ranks."""
        return self.packed.placement

    @property
    def layout(self) -> str:
        """The name of the folder of these processes' parts."""
        return layout_name(self.group.names, self.weights, self.placement.nodes)

    def check(self) -> None:
        """Raises InputError if the task, or this cluster, can't be trained so."""
        self.task.check()
        check_config(self.config, self.trainers)
        self.speed_monitor.check()
        self._check()

    def evaluate(self, parts: Components, split: Split, whole: bool = True) -> dict[str, float]:
        """Evaluates on the leading process; all get the metrics. Collective."""
        return self.peers.from_lead(lambda: self._evaluate(parts, split, whole))

    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        """See `Task.build`; connects to the nodes that carry rows. Collective."""
        tables = self._tables(stack, binding) if self.place is not None else []
        planner = self._planner(stack)
        planner.share = self.share
        source = self._remote = self._connect(stack, tables, self._dimensions(), self._factor, binding)
        source.trains = self.trains
        source.announce(self._told())
        self._dense = self._make_dense(source.sync)
        stack.callback(self.dense.stop)
        self._update = Update.elsewhere(self.dense, self.group.rank)
        step = self._whole_step = self._step(device, threads)
        stack.callback(step.close)
        step = self.speed_monitor.watch(step, self.dense.waited, source.stopped, self.peers)
        routed = self._planned = RoutedPlanner(planner, self._routed)
        self._served = self._update if self._update.size else None
        self._parts = [with_share(planner, each, self._num_parts) for each in range(self._num_parts)]
        return Components(routed, [table.store for table in tables], step, device, source)

    def _told(self) -> dict[str, Any]:
        """What an elastic worker must know of the run, as plain values."""
        about: dict[str, Any] = {"version": __version__, "config": self.config.dump(), "files": dict(self.run_files())}
        about |= {"fingerprint": self.fingerprint, "trains": list(self.crowd.trains), "trainers": self.trainers}
        return about | {"weights": list(self.weights), "placement": self.placement.nodes.tolist()}

    def measure(self, batches: Sequence[int]) -> np.ndarray:
        """Bytes of the values that this process's part of some batches looks up in each virtual shard, int64 [V]."""
        if not self.trains:
            return np.zeros(NUM_SHARDS, np.int64)
        dimensions = self._dimensions()
        costs = [LookupCost() for _ in dimensions]
        with ExitStack() as stack:
            progress = Progress("measuring look-ups", "batches", len(batches)) if self.peers.leads else None
            if progress:
                stack.enter_context(progress)
            planner = self._planner(stack)
            planner.share = self.share
            for number in batches:
                for cost, shards in zip(costs, self._shards(planner.plan(number)), strict=True):
                    cost.add(shards)
                if progress:
                    progress.add(1)
        bytes_of = [4 * dimension * cost.lookups for dimension, cost in zip(dimensions, costs, strict=True)]
        return np.sum(bytes_of, axis=0)

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The placement, and the state of the dense synchronisation; subclasses add theirs."""
        kept = {f"{DENSE}.{name}": tensor.cpu().numpy().reshape(-1) for name, tensor in self.dense.state().items()}
        place = np.array([-1 if self.place is None else self.place])
        figures = np.array(self.packed.figures())
        if not self.trains:
            kept[SERVES] = place
        return kept | {PLACEMENT: self.placement.nodes, PLACE: place, PACKING: figures}

    def load_dense(self, parts: Components, checkpoint: Checkpoint) -> None:
        """See `Task.load_dense`; collective."""
        if not self.trains:
            self.peers.any(False)  # `load_dense` on the others asks whether all can restore their own state
            return
        load_dense(self.config, self.peers, self.dense, self._update, parts.step, checkpoint)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the connections to rows; None: there was none."""
        return self._remote.error if self._remote else None

    def next_pause(self, batch: int) -> int | None:
        """The next switch of modes, or the next decision on one."""
        ends = [self.config.nodes.mode_ends(batch), self.speed_monitor.rests(batch)]
        return min((each for each in ends if each is not None), default=None)

    def before_batches(self, first: int) -> None:
        """Starts the mode in which batches from `first` on are trained."""
        self.speed_monitor.begin(first)
        self.dispatch(cast(ModeName, self.speed_monitor.mode or self.config.nodes.mode_at(first)))
        if self._source.dispatching and self.crowd.serving and self._whole_step.dense_state():
            share_dense(self.peers, self.group, self._whole_step)

    def mode_changes(self, reached: int) -> list[dict[str, Any]]:
        """What the speed monitor decides."""
        return self.speed_monitor.end(reached, self.peers)

    def deal_outside(self, elastic_worker: bool) -> None:
        """For a process outside the group: batches are dispatched to it while there are any. An elastic worker may
        leave at any time."""
        self.dispatch("gba")
        self._source.dispatching = replace(present(self._source.dispatching), elastic_worker=elastic_worker)

    @property
    def stop_requested(self) -> bool:
        """Whether a trainer outside the group was asked to stop."""
        return self._source.counts().get("stopped_max", 0) > 0

    def trained_outside(self) -> tuple[int, float]:
        """See `Task.trained_outside`; known where batches are dispatched."""
        counts = self._source.counts()
        now = int(counts.get("outside_examples", 0)), counts.get("outside_loss", 0.0)
        (examples, loss), self._outside = self._outside, now
        return now[0] - examples, now[1] - loss

    def dispatch(self, mode: ModeName) -> None:
        """Trains the batches that follow in this mode."""
        source = self._source
        source.dispatching = self._dispatching(mode) if mode != "sync" else None
        parts = self._parts if source.dispatching else []
        self._planned.dispatch(parts, lambda: cast(DispatchedRows, source.exchange).reserve())
        if isinstance(self.dense, Served):
            self.dense.dispatched = source.dispatching is not None
        self.dense.start()

    @property
    def _num_parts(self) -> int:
        """M: the parts that a global batch is cut into where batches are dispatched."""
        return self.config.nodes.mode_options.parts or self.trainers

    def _dispatching(self, kind: ModeName) -> Dispatching:
        mode_options, parts = self.config.nodes.mode_options, self._num_parts
        mode = make_mode(kind, self.trainers, parts, 1, **mode_options.rules())
        bounds = bounds_of(self._served, len(self.carried))
        carriers = [self.crowd.peer(rank) for rank, weight in enumerate(self.weights) if weight]
        own = self.crowd.own
        return Dispatching(
            mode, parts, bounds, carriers, cast(Served, self.dense), self._served, mode_options.window, own
        )

    def reached(self, planned: int) -> int:
        """See `Task.reached`; collective where some processes only serve."""
        if not self.crowd.serving:
            return planned
        return max(self.peers.gather(planned if self.trains else 0))

    def after_batches(self, ended: bool) -> None:
        """Brings dense parameters back from the shards; replicas agree once training has ended."""
        dispatching = self._source.dispatching
        if dispatching and self._served:
            self._served.take(self._source.dense_states(), dispatching.bounds)
        if ended:
            self.dense.finish()
        else:
            self.dense.pause()

    def summary(self) -> dict[str, Any]:
        """Traffic, refused connections, the placement, and the metrics of dense parameters. Collective."""
        source = self._source
        counts = self.peers.gather([source.bytes_sent, source.bytes_received, source.refused()])
        names = ("rows.bytes_pushed_and_asked", "rows.bytes_pulled", "nodes.refused")
        dense = self.packed.summary() | {f"dense.{name}": value for name, value in self.dense.metrics().items()}
        sums = {name: sum(each) for name, each in zip(names, zip(*counts, strict=True), strict=True)}
        dispatched = dispatch_metrics(self.peers.gather(dict(source.counts())))
        return dense | sums | dispatched | self.speed_monitor.summary(self.peers)

    def take_over(self, whole: Checkpoint, parts: Components) -> None:
        """Loads this process's rows from a checkpoint of other processes."""
        if self.serves:
            self._take_rows(whole, parts)
        if not self.trains:
            return
        parts.step.load_dense_state(adapted(self.config, self._update, whole.dense(), whole.batch_index))
        self.dense.begin_anew()  # the algorithm's own copy, such as w_ps, was made from the initial values

    def _factor(self, plan: Plan) -> float:
        return self.config.training.optimizer.decay**plan.data.epoch

    def fingerprints(self, stores: Sequence[ParameterStore]) -> dict[str, str]:
        """SHA-256 of each table over all nodes, shard by shard: the same on any number of nodes; collective."""
        own = {store.name: store for store in stores}
        return {name: self._fingerprint(name, own.get(name)) for name in self.table_names()}

    def _fingerprint(self, name: str, store: ParameterStore | None) -> str:
        mine = self._shard_digests(store) if store is not None else {}
        every: dict[int, str] = {}
        for digests in self.peers.gather({str(shard): digest for shard, digest in mine.items()}):
            every |= {int(shard): digest for shard, digest in digests.items()}
        whole = hashlib.sha256(name.encode())
        for shard in sorted(every):
            whole.update(f"{shard}:{every[shard]}".encode())
        return whole.hexdigest()

    @abstractmethod
    def table_names(self) -> list[str]:
        """Names of the tables, in the order of a plan's rows."""

    @abstractmethod
    def _check(self) -> None:
        """Raises ConfigError if the task can't be trained over nodes."""

    @abstractmethod
    def _tables(self, stack: ExitStack, binding: Binding) -> Sequence[ShardTable]:
        """Makes the tables of the rows that this process carries."""

    @abstractmethod
    def _dimensions(self) -> list[int]:
        """The number of floats of a row's value, for each table."""

    @abstractmethod
    def _planner(self, stack: ExitStack) -> SlicedPlanner:
        """Makes a planner of the batches; its `share` is set afterwards."""

    @abstractmethod
    def _routed(self, plan: Any) -> RoutedPlan:
        """The plan with the route to its rows."""

    @abstractmethod
    def _shards(self, plan: Any) -> list[np.ndarray]:
        """The virtual shard of each row that a plan reads, int64 [n], for each table."""

    @abstractmethod
    def known_rows(self) -> tuple[np.ndarray, RowLayout] | None:
        """The number of rows of each virtual shard, int64 [V], and their layout; None if training finds the rows."""

    @abstractmethod
    def _step(self, device: torch.device, threads: int) -> Step:
        """The step, with `_update`."""

    @abstractmethod
    def _evaluate(self, parts: Components, split: Split, whole: bool) -> dict[str, float]:
        """See `evaluate`; on the process that leads alone."""

    @abstractmethod
    def _shard_digests(self, store: ParameterStore) -> dict[int, str]:
        """SHA-256 of each virtual shard on this process."""

    @abstractmethod
    def _take_rows(self, whole: Checkpoint, parts: Components) -> None:
        """Loads the rows that this process carries."""
