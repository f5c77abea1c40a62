"""Training on several nodes: what each of their processes does. `torchrun` has started it, `launch` says how."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.config_base import BaseConfig
from marius_oac.ctr_task import CtrTask
from marius_oac.errors import InputError
from marius_oac.node_ctr import CtrNodes
from marius_oac.node_graph import GraphNodes
from marius_oac.node_task import NodeTask
from marius_oac.nodes import agree
from marius_oac.nodes.allreduce import AllReduce
from marius_oac.nodes.cluster import Place, names
from marius_oac.nodes.connections import Connections
from marius_oac.nodes.group import Group
from marius_oac.nodes.packing import pack
from marius_oac.nodes.shards import NUM_SHARDS, Placement
from marius_oac.nodes.torch_group import TorchGroup
from marius_oac.run import RunFolder
from marius_oac.task import Task
from marius_oac.training import (
    Run,
    check_task,
    default_name,
    has_ended,
    open_run,
    resume_task,
    run_task,
    start_task,
    with_data,
)


def train_on_nodes(config: BaseConfig, place: Place, out: str | Path | None = None, *, trace: bool = False) -> Run:
    """Trains from scratch, as one of the processes of `place.cluster`; collective.

    The first process keeps the run's folder, every other one its part in `nodes/NAME` of it.

    Raises:
        InputError: this or another node can't train; nothing was written.
        NodeLost: another node has ended or is silent.
    """
    path = Path(out) if out else Path("runs") / default_name(config)
    with open_group(place) as group:
        own = config_of(config, place)
        task = agreed_task(config, place, group, lambda: _new_task(own, path, place))
        folder = folder_of(path, place)
        if place.rank:
            group.barrier()  # the first process makes the folder that the others lie in
        with RunFolder.create(folder, own, task.fingerprint, task.run_files()) as run:
            if not place.rank:
                group.barrier()
            run_task(task, run, trace, None)
    return open_run(folder)


def open_group(place: Place) -> Group:
    """All processes of the cluster."""
    os.environ |= {"RANK": str(place.rank), **place.environment()}
    return TorchGroup.from_environment(place.cluster.timeout, place.interface, names(place.cluster))


def config_of(config: BaseConfig, place: Place) -> BaseConfig:
    """The run's configuration as this process has it: its own threads, device, budgets."""
    node, overrides = place.node, []
    if place.threads:
        overrides.append(f"threads={place.threads}")
    if place.device:
        overrides.append(f"device={place.device}")
    if node.memory and config.storage.paged:
        overrides.append(f"storage.memory={int(node.memory) // node.processes}")
    if node.path:
        overrides.append(f"storage.path={json.dumps(list(node.path))}")
    return config.replace(*overrides)


def folder_of(path: Path, place: Place) -> Path:
    """Where a process keeps its part of the run."""
    return path / "nodes" / names(place.cluster)[place.rank].replace("/", "-") if place.rank else path


def _new_task(config: BaseConfig, path: Path, place: Place) -> Task:
    RunFolder.check_new(folder_of(path, place))
    return start_task(config)


def agreed_task(config: BaseConfig, place: Place, group: Group, make: Any) -> NodeTask:
    """The task, once all processes have said that they can train it, and the same."""
    problem, task = None, None
    try:
        task = node_task(make(), place, group)
        check_task(task, folder_of(Path(), place))
    except InputError as error:
        problem = str(error)
    group.barrier()
    digest = hashlib.sha256(config.dump().encode() + (task.fingerprint if task else "").encode()).hexdigest()
    said = agree.statement(place, "" if task is None else digest, problem=problem)
    agree.compare(group.gather(said))
    return task


def node_task(task: Task, place: Place, group: Group) -> NodeTask:
    """The task as it is trained on nodes."""
    config, cluster = task.config, place.cluster
    lockstep = config.pipeline.mode != "async"
    workers = config.pipeline.workers
    ahead = 2 * (config.pipeline.in_flight + workers.plan + workers.read) + 4
    carriers = [node for node in cluster.nodes if node.shards for _ in range(node.processes)]
    ranks = [node for node in cluster.nodes for _ in range(node.processes)]
    number = sum(bool(node.shards) for node in ranks[: place.rank])
    kind = CtrNodes if isinstance(task, CtrTask) else GraphNodes
    return kind(
        task,
        group,
        placement_of([node.shards for node in carriers]),
        number if place.carries else None,
        AllReduce(group),
        Connections(place, group, lockstep, ahead),
    )


def placement_of(weights: Sequence[float]) -> Placement:
    """Virtual shards to those that carry rows, by their weights."""
    ones = np.ones(NUM_SHARDS, np.int64)
    return Placement(pack(ones, ones, [NUM_SHARDS] * len(weights), weights), len(weights))


def resume_on_nodes(
    path: str | Path,
    place: Place,
    overrides: Iterable[str] = (),
    *,
    data: Sequence[str] = (),
    checkpoint: str | None = None,
    trace: bool = False,
) -> Run:
    """Goes on from the newest checkpoint that all processes have, or the one named; collective. See `resume`."""
    with open_group(place) as group, RunFolder.open(folder_of(Path(path), place)) as folder:
        config = config_of(folder.config.replace(*overrides), place)
        task = agreed_task(config, place, group, lambda: resume_task(with_data(config, data), folder, data))
        folder.check_resumable(config, task.fingerprint)
        if checkpoint is None and not data and not task.crew.any(not has_ended(folder, task)):
            return open_run(folder.path)
        run_task(task, folder, trace, None, lambda loop: loop.restore(checkpoint))
    return open_run(folder.path)
