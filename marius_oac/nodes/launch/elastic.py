"""torch's elastic agent, changed to start processes again only after one was lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from marius_oac.config.cluster import START_VARIABLE
from marius_oac.nodes.launch.meeting import Meeting


class Agent(LocalElasticAgent):
    """Starts and watches the processes of one node.

    Args:
        meeting: of all agents.
        command: of each process, without the interpreter.
        count: number of processes.
        address: this node's.
        restarts: how often processes are started again, on all nodes together.
        saving: seconds that a process which was asked to stop may take.
        logs: folder for the output of all processes but the first.
        ended: returns the node's exit code from those of its processes; None: they may be started again.
        spared: returns whether the run goes on without a process, from its pid and exit code.
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
        spared: Callable[[int, int], bool],
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
        self._meeting, self._ended, self._spared = meeting, ended, spared
        self._all_spared = False
        self.failures: Mapping[int, ProcessFailure] = {}
        """The processes whose failure ends this node, by rank."""

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        os.environ[START_VARIABLE] = f"trainers of start {self._meeting.round}"  # they inherit it
        self._remaining_restarts = worker_group.spec.max_restarts - self._meeting.round

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        started: dict[int, Any] = super()._start_workers(worker_group)
        lost: set[int] = set()
        for handler in cast(SubprocessContext, self._pcontext).subprocess_handlers.values():
            self._spare(handler.proc, lost, len(started))
        return started

    def _spare(self, process: Any, lost: set[int], count: int) -> None:  # torch's own class of processes
        """Makes `process.poll` report exit code 0 for a process that the run goes on without."""
        poll: Callable[[], int | None] = process.poll

        def look() -> int | None:
            code = poll()
            if code is None or (process.pid not in lost and not self._spared(process.pid, code)):
                return code
            lost.add(process.pid)
            self._all_spared = len(lost) == count
            return 0

        process.poll = look

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            code = self._ended([each.exitcode for each in result.failures.values()])
            if code is not None:
                self._remaining_restarts = 0
            if not self._remaining_restarts:
                self.failures = result.failures
                self._meeting.leave(1 if code is None else code)
        return result

    def _exit_barrier(self) -> None:
        """Leaves without waiting for the other agents, which need only their own processes. An agent whose processes
        were all lost does not announce an end: if the others start again, it is to be missed."""
        if not self._all_spared:
            self._meeting.leave(0)
