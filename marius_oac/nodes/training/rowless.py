"""Trainers of a run that carry no rows; if all modes dispatch batches, the run continues when they die.

They are started with the others, agree with them on what is trained, and then leave the group of processes. Decisions,
evaluations and checkpoints are made by the processes that carry rows, and by the first one. The servers treat these
trainers as elastic workers from then on. Their agent ignores one that is ended by a signal (`SPARE`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing

from marius_oac.config.task import TaskConfig
from marius_oac.errors import Interrupted, NodeLost
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.launch.cluster import Place, names
from marius_oac.nodes.launch.parent import SPARE, tell_agent
from marius_oac.nodes.shards.connections import security_of
from marius_oac.nodes.training.detached import outside
from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_endpoint import LEFT
from marius_oac.runs.task import Task
from marius_oac.runtime.signals import stop_on_interrupt


def staying(config: TaskConfig, weights: Sequence[float]) -> list[int]:
    """Returns the ranks of the processes, of these weights, that stay in the group."""
    dispatched = config.nodes.dispatches and not {"sync", "auto"} & config.nodes.used
    return [rank for rank, weight in enumerate(weights) if not rank or weight or not dispatched]


class Rowless:
    """A trainer that carries no rows.

    Args:
        task: what is trained.
        group: of all processes, which it leaves.
        rank: among the trainers outside of the group, and those in it before them.
    """

    def __init__(self, task: Task, place: Place, group: Group, rank: int):
        self._task, self._place, self._group, self._rank = task, place, group, rank

    def train(self) -> None:
        """Trains until the run is over.

        Raises:
            NodeLost: a node that carries rows is lost.
            Interrupted: the user has stopped the run.
        """
        (run,) = [each for each in self._group.gather(None) if each]
        if "over" in run:
            return
        task, cluster, place = self._task, self._place.cluster, self._place
        about = security_of(cluster), Limits(), cluster.timeout
        task.check_data_from(0)
        with ExitStack() as stack:
            clients = (ZmqClient(address, name, self._rank, *about) for name, address in run["servers"])
            lines = [stack.enter_context(closing(each)) for each in clients]
            session, source = stack.enter_context(outside(task, lines, run, task.config.nodes, False))
            self._group.close()
            tell_agent(SPARE)
            stops = stack.enter_context(stop_on_interrupt(session.pipeline.request_stop))
            batches = 0
            try:
                while True:
                    session.pipeline.run(batches, batches + 1)
                    batches += 1
            except NodeLost:  # a node may have left because another one is lost
                lost = [error for error in source.until_all_are_over() if getattr(error, "why", None) != LEFT]
                if lost:
                    raise lost[0] from None
            if session.pipeline.stop_requested:
                raise Interrupted(f"node {names(cluster)[place.rank]}: stopped", stops.first)


def alone(config: TaskConfig, place: Place) -> TaskConfig:
    """Returns its configuration, without binding: the run's other processes on this machine are unknown."""
    cores = len(os.sched_getaffinity(0))
    return config.replace("binding=off", f"threads={config.threads or max(1, cores // place.node.processes)}")
