"""Trainers outside the group of the run's processes: they have no rows and no checkpoints, and batches are dispatched
to them.

These are elastic workers (`nodes.training.elastic`) and the run's own trainers that may die (`nodes.training.rowless`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np

from marius_oac.config.modes import NodesConfig
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.sharded.segments import ShardedSegments
from marius_oac.nodes.sharded.speed_monitor import SpeedMonitor
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.packing import Packed
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_endpoint import LEFT
from marius_oac.runs.session import Session
from marius_oac.runs.task import Task
from marius_oac.storage.placement import Placement


@contextmanager
def outside(
    task: Task, lines: Sequence[ZmqClient], run: Mapping[str, Any], nodes: NodesConfig, elastic_worker: bool
) -> Iterator[tuple[Session, RemoteSource]]:
    """Yields what trains the batches that are dispatched to this process, and the source of its rows.

    Args:
        lines: connections to all servers of the run.
        run: what the run says of itself (`NodesHome`).
        nodes: the section of the configuration that holds for this trainer.
        elastic_worker: see `Dispatching`.
    """
    weights, (group,) = run["weights"], ThreadGroup.members(1)
    crowd = Crowd(run["trains"], run["trainers"] - sum(run["trains"]))
    sources: list[RemoteSource] = []

    def connect(stack: ExitStack, tables: Any, formats: Sequence[ValueFormat], factor: Any, _: Any) -> RemoteSource:
        def abort() -> None:
            if getattr(sources[0].error, "why", None) != LEFT:  # else the run is over, and the others leave as well
                for line in lines:
                    line.abort()

        sources.append(RemoteSource(lines, formats, False, 2**31, lambda *_: None, abort, factor))
        return stack.enter_context(sources[0])

    home = NodesHome(
        task, group, weights, lambda servers: AllReduce(group), connect, crowd,
        Packed(Placement(np.array(run["placement"], np.int32), sum(each > 0 for each in weights))),
        detached=True,
        speed_monitor=SpeedMonitor(nodes, run["trainers"], task.config.training.batch_size),
    )  # fmt: skip
    with Session(task, home=home) as session:
        cast(ShardedSegments, session.parts.segments).start("gba", elastic_worker)
        yield session, sources[0]
