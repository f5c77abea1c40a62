"""torch's elastic agent, which starts processes again only after one was lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std

from marius_oac.nodes.agent import START
from marius_oac.nodes.meeting import Meeting


class Agent(LocalElasticAgent):
    """Args:
    meeting: of all agents.
    command: of each process, without the interpreter; `count`: processes.
    address: this node's.
    restarts: how often they are started again, on all nodes together.
    saving: seconds that a process which was asked to stop may take.
    logs: folder for what all but the first process say.
    ended: the exit code that processes' exit codes come to; None: they may be started again.
    """

    def __init__(
        self,
        meeting: Meeting,
        command: Sequence[str],
        count: int,
        address: str,
        restarts: int,
        saving: int,
        logs: str,
        ended: Callable[[Sequence[int]], int | None],
    ) -> None:
        spec = WorkerSpec(
            role="node",
            local_world_size=count,
            entrypoint=sys.executable,
            args=tuple(command),
            rdzv_handler=meeting,
            max_restarts=restarts,
            monitor_interval=0.1,
            local_addr=address,
        )
        kept = DefaultLogsSpecs(logs, redirects=dict.fromkeys(range(1, count), Std.ALL))
        super().__init__(spec, kept, shutdown_timeout=saving)
        self._meeting, self._ended = meeting, ended
        self.failures: Mapping[int, Any] = {}
        """The processes whose failure ends this node, by rank."""

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        os.environ[START] = f"trainers of start {self._meeting.round}"  # they inherit it
        self._remaining_restarts = worker_group.spec.max_restarts - self._meeting.round

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.is_failed():
            code = self._ended([each.exitcode for each in result.failures.values()])
            if code is not None:
                self._remaining_restarts = 0
            if not self._remaining_restarts:
                self.failures = result.failures
                self._meeting.leave(1 if code is None else code)
        return result

    def _exit_barrier(self) -> None:
        """Nobody waits for the others: what they may still have to do needs no agent but their own."""
        self._meeting.leave(0)
