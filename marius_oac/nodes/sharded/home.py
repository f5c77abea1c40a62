"""Rows that are spread over nodes: how a session of them is built, and how its processes stay in step.

Every process runs the same training loop. What only one of them knows (a metric, a request to stop) is sent to all
before anything depends on it, so all take the same decisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from marius_oac import __version__
from marius_oac.data.batches.rank_slice import RankSlice, SlicedPlanner, with_share
from marius_oac.data.splits import Split
from marius_oac.evaluation.sharing import Sharing
from marius_oac.models.compute.update import Update
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.sync_server import SyncServers
from marius_oac.nodes.dense.tree_reduce import TreeReduce
from marius_oac.nodes.gba.counts import dispatch_metrics
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.parts.blocks import parts_of
from marius_oac.nodes.parts.norms import RunningStatistics
from marius_oac.nodes.parts.step import PartedStep
from marius_oac.nodes.sharded.dense import DenseBefore, lent_dense, load_dense, take_over_dense
from marius_oac.nodes.sharded.evaluation import SharedEvaluation
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.sharded.place import check_config
from marius_oac.nodes.sharded.segments import ShardedSegments
from marius_oac.nodes.sharded.speed_monitor import SpeedMonitor
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.packing import Packed, even
from marius_oac.nodes.shards.part_planner import PartPlanner
from marius_oac.nodes.shards.routed import RoutedPlan, RoutedPlanner
from marius_oac.nodes.shards.spans import SpanClient, SpanServer
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.spread.contract import Part, SpreadRows
from marius_oac.nodes.spread.handover import Handover
from marius_oac.nodes.spread.spread import num_shards, spread
from marius_oac.runs.checkpoints.checkpoint import PLACEMENT, SERVES, Checkpoint
from marius_oac.runs.checkpoints.parts import DENSE, PACKING, PLACE, ShardedCheckpoint, layout_name
from marius_oac.runs.home import Home
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.task import Components, Task
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.storage.contract import ParameterStore
from marius_oac.storage.placement import Placement
from marius_oac.types import Plan, Step, present

Metrics = TypeVar("Metrics")
Factor = Callable[[Plan[Any]], float]
Connect = Callable[[ExitStack, Sequence[ShardTable] | None, Sequence[ValueFormat], Factor, Binding], RemoteSource]
"""Serves the tables of this process, unless it carries no rows (None), and connects to those of all processes."""


@dataclass(frozen=True)
class _Built:
    """What `NodesHome.build` has made, beside the components."""

    dense: DenseAgreement
    source: RemoteSource
    update: Update
    step: Step


class NodesHome(Home):
    """The rows of a task are spread over nodes (`Task.tables`).

    Args:
        task: what is trained.
        group: of all processes.
        weights: of each process, by rank: its share of the rows relative to the others'; 0: it carries none.
        make_dense: makes what synchronises dense parameters, given the connections to the sync servers.
        connect: serves the tables of this process and connects to all.
        crowd: which processes train; None: all of the group, and no others.
        packed: the placement of rows; None: by the hash alone.
        detached: whether this process is outside the group of the processes that carry rows.
        speed_monitor: of this trainer; None: that of the group's member.

    Attributes:
        place: this process's number among those that carry rows; None: it carries none.
        rows: the task's, with this process's part of them.
    """

    def __init__(
        self,
        task: Task,
        group: Group,
        weights: Sequence[float],
        make_dense: Callable[[SyncServers], DenseAgreement],
        connect: Connect,
        crowd: Crowd | None = None,
        packed: Packed | None = None,
        detached: bool = False,
        speed_monitor: SpeedMonitor | None = None,
    ):
        super().__init__(task)
        self.group, self.crowd = group, crowd or Crowd([True] * len(weights))
        self.trainers = self.crowd.trainers
        self.weights, self._make_dense, self._connect = weights, make_dense, connect
        carries = weights[group.rank] and not detached
        self.place = sum(each > 0 for each in weights[: group.rank]) if carries else None
        self.peers: ClusterPeers = ClusterPeers(group, detached or self.crowd.trains[group.rank], bool(carries))
        self.packed, self._detached = packed or Packed(even(self.carried, num_shards(task.tables()))), detached
        self.speed_monitor = speed_monitor or SpeedMonitor(
            task.config.nodes, self.trainers, task.config.training.batch_size
        )
        self._built: _Built | None = None

    def placed(self, packed: Packed) -> NodesHome:
        """Returns this task with another placement of rows; nothing has been built yet."""
        about = (self.task, self.group, self.weights, self._make_dense, self._connect, self.crowd)
        return NodesHome(*about, packed, self._detached, self.speed_monitor)

    @cached_property
    def rows(self) -> SpreadRows:
        """See the class."""
        return spread(self.task.tables(), Part(self.placement, self.place))

    @property
    def dense(self) -> DenseAgreement:
        """The synchronisation of dense parameters; made by `build`."""
        return present(self._built).dense

    @property
    def share(self) -> RankSlice:
        """This process's part of each batch in lockstep, if it has one."""
        own = self.peers.trains and not self._detached
        return RankSlice(self.crowd.peer(self.group.rank) if own else 0, self.crowd.within)

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

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the connections to rows; None: there was none."""
        return self._built.source.error if self._built else None

    def check(self) -> None:
        """Raises InputError if the task, or this cluster, can't be trained so."""
        self.task.check()
        check_config(self.config, self.trainers)

    def check_new_data(self, first: int) -> None:
        """See `Home.check_new_data`; every trainer checks its own part of the files."""
        self.peers.agreed(lambda: self.task.check_new_data(first, self.share) if self.peers.trains else None)

    def plan_memory(self, folder: Path) -> MemoryPlan:
        """See `Home.plan_memory`."""
        return self.task.plan_memory(folder, self.rows.held)

    def _row_bytes(self) -> int:
        return self.rows.held * sum(layout.row_bytes for layout in self.rows.layouts.values())

    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        """See `Home.build`; connects to the nodes that carry rows. Collective."""
        rows = self.rows
        tables = rows.make_tables(stack, self.task.folder, binding) if self.peers.serves else None
        source = self._connect(stack, tables, rows.formats, self._factor, binding)
        source.trains = self.peers.trains
        source.announce(self._told())
        dense = self._make_dense(source.sync)
        stack.callback(dense.stop)
        update = Update.elsewhere(dense, self.group.rank)
        own, parts = self.task.make_step(device, threads, update), self.config.nodes.parts
        stack.callback(own.close)
        whole = own
        if parts is not None and self.peers.trains:
            tree = cast(TreeReduce, dense)
            whole = PartedStep(whole, tree.begin_batch, RunningStatistics(update.norms, tree.of_all_parts))
        step = self.speed_monitor.watch(whole, dense.waited)
        planner = with_share(rows.planner(stack), self.share)
        lockstep = self._reading_together(stack, planner, source, binding)
        routed = RoutedPlanner(lockstep, rows.routed) if parts is None else self._part_planner(lockstep, parts)
        carriers = [rank for rank, weight in enumerate(self.weights) if weight]
        segments = ShardedSegments(
            self.config.nodes, self.group, self.peers, self.crowd, carriers, planner, routed, source, dense,
            update if update.size else None, whole, self.speed_monitor,
        )  # fmt: skip
        self._built = _Built(dense, source, update, own)
        stores, readers = [table.store for table in tables or ()], rows.readers(source)
        return Components(routed, stores, step, device, readers, segments, source)

    def _reading_together(
        self, stack: ExitStack, planner: SlicedPlanner, source: RemoteSource, binding: Binding
    ) -> SlicedPlanner:
        """A planner of the batches in lockstep, which reads together with the other trainers' if all carry rows."""
        config, crowd, parts = self.config, self.crowd, self.config.nodes.parts
        carriers = [rank for rank, weight in enumerate(self.weights) if weight]
        trainers = [rank for rank, trains in enumerate(crowd.trains) if trains]
        serve = set(trainers) <= set(carriers) and not crowd.outside and not self._detached
        if not serve or not self.peers.trains or config.pipeline.mode == "async":
            return planner
        count = len(trainers)
        shares = [[RankSlice(each, count)] for each in range(count)]
        if parts is not None:
            shares = [[RankSlice(part, parts) for part in parts_of(each, count, parts)] for each in range(count)]
        exchange = SpanClient(source, [carriers.index(rank) for rank in trainers])
        if not (found := self.rows.read_together(planner, shares, self.share.rank, exchange)):
            return planner
        shared, own = found
        held = 2 * (config.pipeline.most_workers("plan") + 1)
        stack.enter_context(SpanServer(present(source.server), own, count, held, binding.bind_thread))
        return shared

    def _part_planner(self, planner: SlicedPlanner, parts: int) -> RoutedPlanner:
        own = parts_of(self.share.rank, self.share.count, parts)
        # Several parts are read one by one: planners keep no more than one share of a block of a log.
        planners = [with_share(planner, RankSlice(part, parts, dispatched=len(own) > 1)) for part in range(parts)]
        return RoutedPlanner(PartPlanner(planners, own, parts, self.rows.gathered), lambda plan: cast(RoutedPlan, plan))

    def _told(self) -> dict[str, Any]:
        """What an elastic worker must know of the run, as plain values."""
        files = dict(self.task.run_files())
        about: dict[str, Any] = {"version": __version__, "config": self.config.dump(), "files": files}
        about |= {"fingerprint": self.task.fingerprint, "trains": list(self.crowd.trains), "trainers": self.trainers}
        return about | {"weights": list(self.weights), "placement": self.placement.nodes.tolist()}

    def _factor(self, plan: Plan[Any]) -> float:
        return float(self.config.training.optimizer.decay**plan.data.epoch)

    def evaluate(self, parts: Components, split: Split, whole: bool) -> dict[str, float]:
        """Evaluates with the leading process's parameters, each trainer a share; all get the metrics. Collective."""
        return self._together(parts, lambda among: self.task.evaluate(parts, split, whole, among))

    def before_epoch(self, parts: Components, epoch: int) -> dict[str, float] | None:
        """See `Home.before_epoch`; measured as `evaluate` does. Collective."""
        self.rows.before_epoch(epoch)
        self.peers.wait()  # the metrics are those without the rows that all have dropped
        return self._together(parts, lambda among: self.task.before_epoch(parts, epoch, among))

    def predicted(self, parts: Components) -> dict[str, float]:
        """See `Home.predicted`; of the step within the one of `parts`."""
        return self.task.predicted(present(self._built).step, self.peers)

    def _together(self, parts: Components, make: Callable[[Sharing], Metrics]) -> Metrics:
        with lent_dense(self.peers, self.group, parts.step):
            found: Metrics = SharedEvaluation(self.group, self.crowd.trains).evaluate(make)
        return found

    def finish(self, folder: Path) -> None:
        """Adds nothing: no process has all keys, whose names a run on one machine keeps."""

    def summary(self) -> dict[str, Any]:
        """Those of the task, of all nodes' rows, of traffic, the placement and dense parameters. Collective."""
        source = present(self._built).source
        figures = {
            "rows.bytes_pushed_and_asked": source.bytes_sent,
            "rows.bytes_pulled": source.bytes_received,
            "nodes.refused": source.refused(),
        }
        own = figures | (self.rows.counts() if self.peers.serves else {})
        sums: dict[str, int] = {}
        for each in self.peers.gather(own):
            sums |= {name: sums.get(name, 0) + count for name, count in each.items()}
        dense = self.packed.summary() | {f"dense.{name}": value for name, value in self.dense.metrics().items()}
        dispatched = dispatch_metrics(self.peers.gather(dict(source.counts())))
        return {**self.task.summary(), **dense, **sums, **dispatched}

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The placement, the state of the dense synchronisation, and that of the rows."""
        kept = {f"{DENSE}.{name}": tensor.cpu().numpy().reshape(-1) for name, tensor in self.dense.state().items()}
        place = np.array([-1 if self.place is None else self.place])
        figures = np.array(self.packed.figures())
        if not self.peers.trains:
            kept[SERVES] = place
        kept |= {PLACEMENT: self.placement.nodes, PLACE: place, PACKING: figures}
        return kept | dict(self.rows.state_arrays())

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See `Home.load_state_arrays`."""
        self.rows.load_state_arrays(arrays)

    def load_dense(self, parts: Components, checkpoint: Checkpoint) -> None:
        """See `Home.load_dense`; collective."""
        if not self.peers.trains:
            self.peers.any(False)  # `load_dense` on the others asks whether all can restore their own state
            return
        load_dense(self.config, self.peers, self.dense, present(self._built).update, parts.step, checkpoint)

    def take_over(self, whole: Checkpoint, parts: Components) -> None:
        """Loads this process's rows from a checkpoint of other processes. Collective."""
        before = cast(ShardedCheckpoint, whole)
        carriers = [rank for rank, weight in enumerate(self.weights) if weight]
        handover = Handover(self.group, carriers, self.peers.agreed)
        placement, dense = self.peers.agreed(lambda: (before.placement, DenseBefore.read(before)))
        self.rows.take(before.parts, placement, parts.stores, handover)
        built = present(self._built)
        take_over_dense(self.config, self.peers, self.dense, built.update, parts.step, dense, whole.batch_index)

    def fingerprints(self, stores: Sequence[ParameterStore]) -> dict[str, str]:
        """SHA-256 of each table over all nodes, shard by shard: the same on any number of nodes; collective."""
        own = {store.name: store for store in stores}
        return {name: self._fingerprint(name, own.get(name)) for name in self.rows.layouts}

    def _fingerprint(self, name: str, store: ParameterStore | None) -> str:
        mine = self.rows.digests(store) if store is not None else {}
        every: dict[int, str] = {}
        for digests in self.peers.gather({str(shard): digest for shard, digest in mine.items()}):
            every |= {int(shard): digest for shard, digest in digests.items()}
        whole = hashlib.sha256(name.encode())
        for shard in sorted(every):
            whole.update(f"{shard}:{every[shard]}".encode())
        return whole.hexdigest()
