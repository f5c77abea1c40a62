"""torch's elastic agent, changed to start processes again only after one was lost, and the rendezvous of a run's
agents, each time before they start their processes.

Guarantees of the rendezvous:
- It ends in time: all have come, or one line names those that have not.
- An agent that has ended for good (`leave`) or is lost (`note_lost`) is not waited for: the others end, too, with its
  exit code if that says why.
- An agent that was killed can't come back, and a second one of the same name is refused.
- Agents exchange text only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, cast

from torch.distributed import DistError, DistStoreError, PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from marius_oac.config.cluster import START_VARIABLE
from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.launch.agent_signals import AgentSignals
from marius_oac.nodes.launch.cluster import STARTED_TWICE
from marius_oac.nodes.launch.parent import bound

_LOOK = 0.2  # seconds between two looks: signals are handled meanwhile
_ENDED = "ended"
_LOST = "lost"
_PASSED_ON = ("2", "129", "130", "143")  # exit codes with which every node ends: a mistake, or a signal
_DEFECTS = (1, 2)  # exit codes after which the others must stop; after any other they stop by themselves or are done


class Meeting(RendezvousHandler):
    """torch's rendezvous of nodes that are known by name.

    Args:
        store: shared by all agents, each of which reaches it at a port of its machine's loopback. Their processes find
            each other by it, too.
        nodes: all nodes' names, in the order of nodes.yaml.
        index: of this node.
        patience: seconds that the first rendezvous may take. A later one may take `grace` more.
        began: when the first one began (`time.monotonic`); None: when it is called.
        grace: seconds that this agent's processes have to end by themselves when others begin another rendezvous.
        count: of this agent's processes.
        met: returns whether this agent's processes, which run, have met all others of their start.
    """

    def __init__(
        self,
        store: TCPStore,
        nodes: Sequence[str],
        index: int,
        patience: float,
        began: float | None = None,
        grace: float = 0.0,
        count: int = 1,
        met: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._nodes, self._index = store, nodes, index
        self._patience, self._began, self._grace, self._met = patience, began, grace, met
        self.count = count
        self.counts: list[int] = []
        """How many processes each agent has; set by each rendezvous."""
        self._seen: tuple[int, float] | None = None
        self.round = -1
        """The number of the last rendezvous, from 0."""

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for all agents.

        Raises:
            InputError: another agent has this one's name.
            NodeLost: an agent has not come, or has ended.
        """
        self.round += 1
        self._store.set(f"{self.round}/count {self._index}", f"{self.count}")
        if self._store.add(f"{self.round}/{self._index}", 1) > 1:
            raise InputError(STARTED_TWICE, f"node {self._nodes[self._index]}")
        self._store.set(f"{self.round}", "begun")
        self._wait()
        keys = [f"{self.round}/count {each}" for each in range(len(self._nodes))]
        self.counts = [int(count) for count in self._store.multi_get(keys)]  # all are there
        start = PrefixStore(f"start {self.round}", self._store)
        return RendezvousInfo(
            start, self._index, len(self._nodes), RendezvousStoreInfo(self._store.host, self._store.port)
        )

    @property
    def use_agent_store(self) -> bool:
        """True: processes make no store of their own."""
        return True

    def _wait(self) -> None:
        began, self._began = self._began or time.monotonic(), None
        while True:
            self._check_ended()
            lacking = [k for k in range(len(self._nodes)) if not self._store.check([f"{self.round}/{k}"])]
            if not lacking:
                return
            patience, what = self._patience, "start"
            if self.round:
                patience, what = patience + self._grace, "start again"
            if time.monotonic() > began + patience:
                self.leave(1)
                who = ", ".join(self._nodes[k] for k in lacking)
                raise NodeLost(who, f"has not come to {what} in {patience:g} s")
            with suppress(DistStoreError):
                self._store.wait([f"{self.round}/{lacking[0]}"], timedelta(seconds=_LOOK))

    def _check_ended(self) -> None:
        if not self._store.check([_ENDED]):
            return
        who, _, code = self._store.get(_ENDED).decode("ascii", "replace").partition(" ")
        name = self._nodes[int(who)] if who.isdecimal() and int(who) < len(self._nodes) else "?"
        how = "its agent is lost" if code == _LOST else f"it has ended with exit code {code}"
        error = NodeLost(name, f"{how}: the others can't go on")
        error.exit_code = int(code) if code in _PASSED_ON else 1
        raise error

    def leave(self, code: int) -> None:
        """Announces that this agent ends with that exit code and comes to no further rendezvous. Never raises, even if
        the store is gone."""
        with suppress(DistError):
            self._store.compare_set(_ENDED, "", f"{self._index} {code}")
            if code in _DEFECTS:
                self._store.set(f"{self.round + 1}", "begun")  # agents whose processes train look at this key

    def num_nodes_waiting(self) -> int:
        """Returns 1 if the next rendezvous has begun, so that this agent stops its processes and joins it; else 0.

        Also 1 if another agent is gone while processes still wait to meet all others: they wait in vain.

        It waits for `grace` first if its processes have met the others: those that have lost another node end by
        themselves, and their exit codes may say why the others have lost them, which may be no reason to start again.
        """
        try:
            begun, ended = (self._store.check([key]) for key in (f"{self.round + 1}", _ENDED))
        except DistError:  # the first node's agent has ended
            begun, ended = False, True
        if ended:
            return int(begun or not self._met())
        if not begun or not self._met():
            return int(begun)
        if self._seen is None or self._seen[0] != self.round:
            self._seen = self.round, time.monotonic()
        return int(time.monotonic() >= self._seen[1] + self._grace)

    def get_backend(self) -> str:
        """Returns the name that torch shows."""
        return "marius-oac"

    def get_run_id(self) -> str:
        """Returns a name that is the same for all."""
        return "marius-oac"

    def is_closed(self) -> bool:
        """Never: see `leave`."""
        return False

    def set_closed(self) -> None:
        """See `leave`."""

    def shutdown(self) -> bool:
        """Returns True: there is nothing to release."""
        return True


def note_lost(store: TCPStore, index: int) -> None:
    """Says in the store that an agent is gone, unless it has said so itself. Never raises, even if the store is gone.

    Those that train go on. Whoever comes to the next rendezvous does not wait for it there.
    """
    with suppress(DistError):
        store.compare_set(_ENDED, "", f"{index} {_LOST}")


class Agent(LocalElasticAgent):
    """Starts and watches the processes of one node.

    Args:
        meeting: of all agents.
        signals: at this agent.
        command: of each process, without the interpreter.
        address: this node's.
        restarts: how often processes are started again, on all nodes together.
        saving: seconds that a process which was asked to stop may take.
        timeout: half of it, and torch's 30 s at most, is what a process has that is stopped because another one failed,
            here or on another node.
        logs: folder for the output of all processes but the first.
        ended: returns the node's exit code from those of its processes; None: they may be started again.
        spared: returns whether the run goes on without a process, from its pid and exit code.
    """

    def __init__(
        self,
        meeting: Meeting,
        signals: AgentSignals,
        command: Sequence[str],
        address: str,
        restarts: int,
        saving: int,
        timeout: float,
        logs: str,
        ended: Callable[[Sequence[int]], int | None],
        spared: Callable[[int, int], bool],
    ) -> None:
        program, *words = bound([sys.executable, *command])
        spec = WorkerSpec(
            role="node",
            local_world_size=meeting.count,
            entrypoint=program,
            args=tuple(words),
            rdzv_handler=meeting,
            max_restarts=restarts,
            monitor_interval=0.1,
            local_addr=address,
        )
        kept = DefaultLogsSpecs(logs, redirects=dict.fromkeys(range(1, meeting.count), Std.ALL))
        super().__init__(spec, kept, shutdown_timeout=saving)
        self._meeting, self._signals, self._ended, self._spared = meeting, signals, ended, spared
        self._saving, self._brief = saving, min(30.0, timeout / 2)
        self._all_spared = False
        self.failures: Mapping[int, ProcessFailure] = {}
        """The processes whose failure ends this node, by rank."""

    def running(self) -> list[int]:
        """The processes that were started and have not ended."""
        if self._pcontext is None:
            return []
        handlers = cast(SubprocessContext, self._pcontext).subprocess_handlers
        return [each.proc.pid for each in handlers.values() if each.proc.returncode is None]

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._signals.raise_late()  # it came while processes were stopped to start again
        super()._rendezvous(worker_group)
        os.environ[START_VARIABLE] = f"trainers of start {self._meeting.round}"  # they inherit it
        self._remaining_restarts = worker_group.spec.max_restarts - self._meeting.round

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Numbers this node's processes. torch's own way asks the store for what each agent writes after the
        rendezvous, and waits there, in compiled code, for one that has ended since."""
        first, size = sum(self._meeting.counts[:group_rank]), sum(self._meeting.counts)
        return [Worker(each, first + each, first + each, size, size) for each in range(spec.local_world_size)]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._signals.started(self.running)
        with self._signals.held_back():
            started: dict[int, Any] = super()._start_workers(worker_group)
        lost: set[int] = set()
        context = cast(SubprocessContext, self._pcontext)
        context.close = partial(self._close, context.close)  # type: ignore[method-assign]
        for handler in context.subprocess_handlers.values():
            self._spare(handler.proc, lost, len(started))
        self._signals.raise_late()
        return started

    def _close(
        self, close: Callable[..., None], number: signal.Signals | None = None, seconds: float | None = None
    ) -> None:
        """Stops all processes. Where they do not stop for good and save, as where one has failed, they have less time
        than the 30 s that torch gives them."""
        with self._signals.held_back():
            close(number, self._saving if seconds == self._saving else self._brief)

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
        self._signals.ended()
        if not self._all_spared:
            self._meeting.leave(0)
