"""What a process of a cluster trains and where its rows are, on which all processes agree before any of them trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from marius_oac.config.cluster import read_secret
from marius_oac.config.task import TaskConfig
from marius_oac.errors import InputError
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.kinds import make_dense_sync
from marius_oac.nodes.dense.sync_server import SyncServers
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.launch import agree
from marius_oac.nodes.launch.cluster import Place, names, trains_of, weights_of
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.sharded.place import name_of
from marius_oac.nodes.sharded.placement import agreed_packing
from marius_oac.nodes.shards.connections import Connections, check_port
from marius_oac.nodes.shards.packing import pack
from marius_oac.nodes.training.rowless import Rowless, alone, staying
from marius_oac.runs.checkpoints.parts import NODES
from marius_oac.runs.task import Task
from marius_oac.training import local
from marius_oac.types import present


def agreed_home(
    config: TaskConfig,
    place: Place,
    group: Group,
    make: Callable[[], Task],
    run: Path,
    resumes: bool = False,
    checkpoint: str | None = None,
) -> NodesHome | Rowless:
    """Returns where the rows will be, once all processes have agreed that they can train the same. Collective.

    Args:
        run: the run's folder; `resumes`: whether it continues; `checkpoint`: the one to continue from, if one is named.
    """
    problem, found = None, None
    try:
        found = nodes_home(make(), place, group)
        read_secret(place.cluster)
        check_port(place)
        found.check()
    except InputError as error:
        problem = str(error)
    group.barrier()
    digest = hashlib.sha256(config.dump().encode()).hexdigest()
    said = agree.statement(place, digest, problem=problem, data_digest="" if found is None else data_digest(found.task))
    agree.compare(group.gather(said))
    home = present(found)  # else the comparison has raised its problem
    ranks = staying(config, home.weights)
    if len(ranks) < group.size:
        part, others = group.part(ranks), [rank for rank in range(group.size) if rank not in ranks]
        if part is None:
            one = home.task
            one.config = alone(one.config, place)
            return Rowless(one, place, group, len(ranks) + others.index(group.rank))
        home = nodes_home(home.task, place, part, ranks, group)
    home = home.placed(agreed_packing(home, config, place.cluster, run if resumes else None, checkpoint))
    home.peers.agreed(lambda: local.check_home(home, part_of(run, home, place)))
    return home


def data_digest(task: Task) -> str:
    """Digest of the data: of a graph, or of a log's schema and of sizes and samples of its files."""
    return hashlib.sha256(json.dumps([task.fingerprint, *sorted(task.run_files().items())]).encode()).hexdigest()


def nodes_home(
    task: Task, place: Place, group: Group, ranks: Sequence[int] | None = None, whole: Group | None = None
) -> NodesHome:
    """Returns where the rows of a task are over nodes.

    Args:
        ranks: of the processes in `group`; `whole`: of all processes, where these are not all (`rowless`).
    """
    config, cluster = task.config, place.cluster
    lockstep = config.pipeline.mode != "async"
    pipeline = config.pipeline
    ahead = 2 * (pipeline.room + pipeline.most_workers("plan") + pipeline.most_workers("read")) + 4
    every, called, trains = weights_of(cluster), names(cluster), trains_of(cluster)
    within = range(len(every)) if ranks is None else ranks
    weights = [every[rank] for rank in within]
    rowless = [called[rank] for rank in range(len(every)) if rank not in within]
    carriers = sum(bool(weight) for weight in weights)
    dense = config.nodes.dense
    crowd = Crowd([trains[rank] for rank in within], sum(trains) - sum(trains[rank] for rank in within))

    def make_dense(servers: SyncServers) -> DenseAgreement:
        def assign(sizes: Sequence[int]) -> list[int]:
            packed: list[int] = pack(np.array(sizes), np.array(sizes), [sum(sizes)] * carriers, unit="bytes").tolist()
            return packed

        together: Group | None = group
        if crowd.serving:
            together = group.part([rank for rank in range(group.size) if crowd.trains[rank]])
        if together is None:  # it has no gradients; shards of parameters are sent to it
            return AllReduce(ThreadGroup.members(1)[0])
        return make_dense_sync(dense, together, lockstep, servers, assign, config.nodes.parts)

    alpha = dense.alpha if dense.kind == "easgd" else None
    tell = whole.gather if whole else lambda run: None
    connections = Connections(place, group, lockstep, ahead, alpha, rowless, tell, crowd, config.nodes.parts)
    return NodesHome(task, group, weights, make_dense, connections, crowd)


def part_of(run: Path, home: NodesHome, place: Place) -> Path:
    """Returns the folder with this process's rows."""
    return run / NODES / home.layout / name_of(place)
