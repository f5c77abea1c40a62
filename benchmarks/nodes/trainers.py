"""What benchmarks and tests of quality over nodes share: a model that several trainers of this process train for real.

Each trainer has all that a process of `marius-oac train --nodes` has: its share of every batch, its pipeline, its own
replica of the network, its part in the agreement. The first one serves the rows. They are threads, which saves starting
processes, and talk through memory: shards, exchanges and agreement are the ones that run over a network.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from marius_oac.config.task import TaskConfig
from marius_oac.errors import NodeLost
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.kinds import make_dense_sync
from marius_oac.nodes.dense.sync_server import SyncServer, SyncServers
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.shards.dispatched_shard import make_dispatched_shard
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.in_process import Network
from marius_oac.pipeline.stages import BatchResult
from marius_oac.runs.session import Session
from marius_oac.runtime import blas
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.machine.binding import Binding
from marius_oac.training.local import start_task
from marius_oac.types import Plan

PATIENCE = 600.0
SERVER = "rows"


@dataclass(frozen=True)
class Trained:
    """Attributes:
    test: metrics of the test files.
    train_loss: mean over all examples, each before its batch was trained on.
    dense: metrics of the agreement, of all trainers.
    digests: SHA-256 of the tables and of the dense parameters, by name.
    summary: what the task says of itself in the end.
    replaced: rows that were patched after they had been pulled, of all batches.
    predicted: metrics of each epoch's batches, predicted before they were trained on, if the step predicts them.
    """

    test: dict[str, float]
    train_loss: float
    dense: dict[str, float]
    digests: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    replaced: int = 0
    predicted: list[dict[str, float]] = field(default_factory=list)


def train_together(config: TaskConfig, trainers: int) -> Trained:
    """Trains to the end of the road and tests, by so many trainers. The first error of any of them is raised."""
    torch.set_num_threads(1)
    task, network, weights = start_task(config), Network(), [1.0] + [0.0] * (trainers - 1)
    nodes = []
    for group in ThreadGroup.members(trainers, PATIENCE):
        here = _Here(config, group, network)
        nodes.append(NodesHome(task, group, weights, here.agreement, here.connect))
    errors: list[BaseException] = []

    def work(node: NodesHome) -> _Outcome:
        try:
            return _trained(node)
        except BaseException as error:
            errors.append(error)
            node.group.abort()
            raise

    with blas.one_thread_per_product(), ThreadPoolExecutor(trainers) as threads:
        outcomes = [threads.submit(work, node) for node in nodes]
    if errors:  # the first that is not another's echo
        raise next((each for each in errors if not isinstance(each, (Closed, NodeLost))), errors[0])
    first, results = outcomes[0].result(), [each for outcome in outcomes for each in outcome.result().results]
    examples = sum(result.examples for result in results)
    loss = sum(result.loss * result.examples for result in results) / examples
    replaced = sum(result.replaced for result in results)
    return Trained(first.test, loss, first.dense, first.digests, first.summary, replaced, first.predicted)


@dataclass(frozen=True)
class _Outcome:
    """What one of the trainers found; see `Trained`."""

    results: list[BatchResult]
    test: dict[str, float]
    dense: dict[str, float]
    digests: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    predicted: list[dict[str, float]] = field(default_factory=list)


def _trained(node: NodesHome) -> _Outcome:
    results: list[BatchResult] = []
    predicted: list[dict[str, float]] = []
    with Session(node.task, home=node) as session:
        session.report_to(results.append)
        first = 0
        for epoch, last in enumerate(node.task.schedule.ends):
            session.before_epoch(epoch)
            session.parts.segments.begin(first)
            session.pipeline.run(first, last)
            session.parts.segments.end(last == node.task.schedule.last)
            node.peers.wait()  # until everyone's batches are in the rows
            predicted.append(session.predicted(first))
            first = last
        digests = node.fingerprints(session.stores) | {"dense": session.dense_fingerprint()}
        dense, summary = node.dense.metrics(), node.summary()
        found = _Outcome(results, session.evaluate("test"), dense, digests, summary, predicted)
        node.peers.wait()
    return found


class _Here:
    """What a trainer is connected by."""

    def __init__(self, config: TaskConfig, group: Group, network: Network):
        self._config, self._group, self._network = config, group, network
        self._lockstep = config.pipeline.mode != "async"

    def agreement(self, servers: SyncServers) -> DenseAgreement:
        nodes, about = self._config.nodes, (self._group, self._lockstep, servers)
        return make_dense_sync(nodes.dense, *about, lambda sizes: [0] * len(sizes), nodes.parts)

    def connect(
        self,
        stack: ExitStack,
        tables: Sequence[ShardTable] | None,
        formats: Sequence[ValueFormat],
        factor: Callable[[Plan], float],
        binding: Binding,
    ) -> RemoteSource:
        group, pipeline, server = self._group, self._config.pipeline, None
        ahead = 2 * (pipeline.room + pipeline.most_workers("plan") + pipeline.most_workers("read")) + 4
        if tables is not None:
            ranks = dict(enumerate(group.names))
            door = self._network.server(SERVER, ranks)
            nodes, lockstep = self._config.nodes, self._lockstep
            shard = Shard(tables, group.size, lockstep, SyncServer(nodes.dense.alpha), ahead, nodes.parts)
            server = stack.enter_context(ShardServer(shard, [(door, list(ranks))], lambda error: fail(error)))
        line = self._network.client(SERVER, group.rank, PATIENCE)

        def begin(*stretch: int) -> None:
            if server:
                dispatching, about = source.dispatching, (tables, group.size, ahead)
                server.begin(
                    stretch[0], make_dispatched_shard(*about, dispatching, stretch, 0) if dispatching else shard
                )
            group.barrier()

        def finish() -> None:
            if server:
                server.finish()
            group.barrier()

        def abort() -> None:
            line.abort()
            group.abort()

        source = RemoteSource([line], formats, self._lockstep, ahead, begin, abort, factor, finish)
        fail = source.fail
        if server:
            source.counts = lambda: server.counts
        return stack.enter_context(source)


class Runs:
    """Trains what a file does not know yet; each run is a line of JSON of it.

    Args:
        path: the file, which need not be there; None: nothing is kept.
    """

    def __init__(self, path: Path | None):
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self._known = {each["run"]: Trained(**each["found"]) for each in map(json.loads, lines)}

    def train(self, run: str, config: TaskConfig, trainers: int) -> Trained:
        """`run` says which one it is, as nobody else's does."""
        if run not in self._known:
            found = self._known[run] = train_together(config, trainers)
            if self._path:
                with self._path.open("a") as file:
                    file.write(json.dumps({"run": run, "found": asdict(found)}) + "\n")
        return self._known[run]


def spread(values: Sequence[float]) -> float:
    """Standard deviation; NaN of one value."""
    return statistics.stdev(values) if len(values) > 1 else float("nan")
