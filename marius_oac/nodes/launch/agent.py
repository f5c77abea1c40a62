"""Starts and watches one node's processes with torchrun's agent, in this process.

Guarantees:
- When a process fails all are stopped. The run ends with its exit code and a message that names its node. Processes
  that are asked to stop and don't are killed.
- SIGINT, SIGTERM and SIGHUP are passed on to every process (`agent_signals.py`). The first request stops a trainer
  after the batches in flight, the second at once.
- After the loss of a node all processes are started again, `restarts` times at most. After any other end none is.
- No process outlives the agent, even if the agent is killed (each process calls `end_with_parent`).
- Who is stopped for `timeout` seconds holds up nobody: this process kills such processes, and such a guard, with which
  it ends. If it is stopped itself, its guard kills it; without one its processes stop (`stopped_with_parent`).
- The first process writes to this process's standard output and error. The output of another one is shown if it fails
  first.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from marius_oac.config.cluster import SECRET_VARIABLE, START_VARIABLE
from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.launch.cluster import STARTED_TWICE, endpoint
from marius_oac.nodes.launch.frozen import age, frozen_end
from marius_oac.nodes.launch.parent import MET, PARENT, SPARE, TOLD, has_told
from marius_oac.nodes.launch.tunnel import LOOPBACK, StoreGate, StoreProxy
from marius_oac.nodes.transport.contract import TAKEN, Security
from marius_oac.runtime.console import logger, say
from marius_oac.runtime.files.scratch import scratch_folder
from marius_oac.runtime.machine.cgroups import memory_kills
from marius_oac.runtime.signals import REMIND_SECONDS, StopSignal

if TYPE_CHECKING:  # torch is imported when its logging is set up
    from torch.distributed import DistError, TCPStore
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

SAVING = 600  # seconds that a process which was asked to stop may take to write a checkpoint (torch: 30)
LOST = 75  # exit code of a process that has lost another node: its agent may start it again
_LINES = 40  # of a failed process's standard error that are shown
_ASKED = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)  # exit codes of processes that were asked to stop


@dataclass(frozen=True)
class LocalProcesses:
    """The processes of one node.

    Attributes:
        command: of each process, without the interpreter.
        names: of the processes, for messages.
        secret: of the run.
        nodes: names of all nodes.
        index: of this node in `nodes`.
        endpoint: IP:PORT of the rendezvous, where the first node's agent listens; unused with one node.
        address: this node's, as the others know it.
        restarts: how often all processes are started again after one was lost.
        timeout: seconds after which a silent agent is lost.
        patience: seconds that agents wait for each other to start, from the start of each, but at least `timeout` from
            where it could meet the others; to start again `timeout` more.
    """

    command: Sequence[str]
    names: Sequence[str]
    secret: str = field(repr=False)
    nodes: Sequence[str] = ("this",)
    index: int = 0
    endpoint: str = ""
    address: str = LOOPBACK
    restarts: int = 0
    timeout: float = 60.0
    patience: float = 60.0


def run(processes: LocalProcesses) -> int:
    """Runs the processes until all have ended; returns the exit code: 0, the failed process's, or 128 + the signal.

    Raises:
        NodeLost: a process was ended by a signal that this process did not send; or the agent of another node has not
            come, has ended, or does not answer.
        InputError: this process can't listen at the rendezvous, or another agent of this node runs.
    """
    with variables({"TORCH_CPP_LOG_LEVEL": "ERROR"}):  # torch would warn when agents disconnect at the end
        from torch.distributed import DistError
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from marius_oac.nodes.launch.agent_signals import LEFT_TO_US, AgentSignals
        from marius_oac.nodes.launch.elastic import Agent, Meeting

    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.addHandler(logging.NullHandler())
    elastic.propagate = False  # `_explain` says it in one line
    ours = {SECRET_VARIABLE: processes.secret, PARENT: str(os.getpid()), START_VARIABLE: ""}
    # Whoever is slow to start still waits for the others for `timeout`.
    began = time.monotonic() - min(age(), max(0.0, processes.patience - processes.timeout))
    guard, kills = [os.getppid()] if PARENT in os.environ else [], memory_kills()
    with (
        scratch_folder() as logs,
        scratch_folder() as told,
        variables(ours | LEFT_TO_US | {TOLD: str(told)}),
        _sigquit_restored(),
        AgentSignals().handled() as signals,
        store_of(processes, began) as store,
    ):
        meeting = Meeting(
            store, processes.nodes, processes.index, processes.patience, began, processes.timeout,
            len(processes.names), met=lambda: any(has_told(told, pid, MET) for pid in agent.running()),
        )  # fmt: skip
        about = (processes.command, processes.address, processes.restarts, SAVING, processes.timeout, str(logs))
        spared = partial(_spared, processes, told)
        agent = Agent(meeting, signals, *about, exit_code_of, spared)
        try:
            with frozen_end(lambda: [*guard, *agent.running()], processes.timeout):
                failures = agent.run().failures
        except SignalException as error:
            if not agent.failures:
                return 128 + int(error.sigval)
            failures = agent.failures  # the failure made this agent stop the others
        except DistError as error:
            if not processes.index:
                raise
            raise _first_lost(processes, error) from error
        finally:
            signals.ended()
        return _explain(processes, failures, logs, kills) if failures else 0


def _first_lost(processes: LocalProcesses, error: DistError) -> NodeLost:
    why = str(error).partition("\n")[0]
    return NodeLost(processes.nodes[0], f"its agent, which serves the rendezvous, has ended: {why}")


def exit_code_of(codes: Sequence[int]) -> int | None:
    """Returns a node's exit code from those of its processes; None: a process was lost, so all may be started again.

    Other failures are final: a mistake, a full disk or a defect would fail again, and a stopped run is to stop.
    """
    defects = [code for code in codes if 0 < code < 128 and code != LOST]
    if defects:
        return max(defects)
    if any(code == LOST or (code < 0 and code not in _ASKED) for code in codes):
        return None
    return next(128 - code if code < 0 else code for code in codes)


def _spared(processes: LocalProcesses, told: Path, pid: int, code: int) -> bool:
    """Whether the run goes on without a process that has ended with this code; if so, logs it."""
    if code >= 0 or code in _ASKED or not has_told(told, pid, SPARE):
        return False
    name = signal.Signals(-code).name
    logger.warning(
        f"node {processes.nodes[processes.index]}: process {pid} was ended by {name}; the run goes on without it"
    )
    return True


@contextmanager
def node_loss_marked() -> Iterator[None]:
    """Gives a NodeLost of the block the exit code `LOST`, by which the agent knows that it may start again."""
    try:
        yield
    except NodeLost as error:
        if PARENT in os.environ and error.exit_code == NodeLost.exit_code:
            error.exit_code = LOST
        raise


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM stop the block as Ctrl-C does, where no training loop handles it.

    An agent sends it to all processes when one has failed. While an exception is handled it waits, so that the process
    that has failed can report its error.
    """
    again, heard = threading.Timer(0, lambda: None), False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal again, heard
        if sys.exception() is not None and not heard:
            again.cancel()
            again = threading.Timer(REMIND_SECONDS, os.kill, (os.getpid(), number))
            with suppress(RuntimeError):  # no thread can be started: the error that is handled is worth more
                again.start()
            return
        heard = True
        if not callable(before):
            raise StopSignal(number)
        before(number, frame)  # that of the command, which raises StopSignal, and again if it is lost

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    except BaseException:
        before = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        again.cancel()
        if again.ident:
            again.join()


@contextmanager
def store_of(processes: LocalProcesses, began: float | None = None) -> Iterator[TCPStore]:
    """Yields the store of the agents' rendezvous, and of their processes'. The first node's agent keeps it on the
    loopback.

    Args:
        processes: of this node.
        began: when it began to wait for the others (`time.monotonic`); None: now. Time in which this process was
            stopped counts, too: the others have not waited for longer.

    Raises:
        InputError: the port is taken, or the address is not this machine's; or another agent of this node runs.
        NodeLost: the first node's agent is not there, or has another secret.
    """
    from torch.distributed import DistError, TCPStore

    from marius_oac.nodes.launch.elastic import note_lost

    secret = hashlib.sha256(processes.secret.encode()).digest()
    about = Security(secret=secret, run="rendezvous"), processes.timeout
    if processes.index:
        with _store_proxy(processes, *about, began) as proxy:
            patience = timedelta(seconds=processes.patience)
            try:
                store = TCPStore(LOOPBACK, proxy.port, None, False, patience, wait_for_workers=False)
            except DistError as error:
                raise _first_lost(processes, error) from error
            yield store
        return
    store = listen(LOOPBACK, 0, processes.patience)
    several = len(processes.nodes) > 1
    gate = StoreGate(processes.endpoint, store.port, processes.nodes, *about, logger.warning,
                     lambda index: note_lost(store, index)) if several else None  # fmt: skip
    with gate or nullcontext():
        yield store


def _store_proxy(processes: LocalProcesses, security: Security, timeout: float, began: float | None) -> StoreProxy:
    index, first = processes.index, processes.nodes[0]
    try:
        return StoreProxy(processes.endpoint, first, index, security, timeout, processes.patience, began)
    except NodeLost as error:
        if str(error).endswith(TAKEN):
            raise InputError(STARTED_TWICE, f"node {processes.nodes[index]}") from None
        raise


def listen(host: str, port: int, patience: float) -> TCPStore:
    """Starts torch's store at one address alone, and returns it; port 0: any that is free.

    Raises:
        InputError: the port is taken, or the address is not this machine's.
    """
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listening:
            seconds, descriptor = timedelta(seconds=patience), os.dup(listening.fileno())
            port = listening.getsockname()[1]
            return TCPStore(host, port, None, True, seconds, wait_for_workers=False, master_listen_fd=descriptor)
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        raise InputError(f"can't listen there: {why}", endpoint(host, port)) from None


def _explain(processes: LocalProcesses, failures: Mapping[int, ProcessFailure], logs: Path, kills: int) -> int:
    """Reports the failure that ended the run; returns the exit code. `kills` is what `memory_kills` was before."""
    codes = {each.local_rank: each.exitcode for each in failures.values()}
    ended = exit_code_of(list(codes.values()))
    soonest = min(each.timestamp for each in failures.values())
    for each in failures.values() if ended is None else ():  # later ones were killed because they did not stop
        if each.exitcode < 0 and each.exitcode not in _ASKED and each.timestamp <= soonest + 1:
            how = signal.Signals(-each.exitcode).name
            if each.exitcode == -signal.SIGKILL and memory_kills() > kills:
                how += ": the kernel has ended a process for lack of memory (the machine's, or memory.max of its group)"
            raise NodeLost(processes.names[each.local_rank], f"process {each.pid} was ended by {how}")
    for local, code in codes.items():
        # LOST: it ended because of another one. 2: all have found the same mistake, and the first has reported it.
        if local and 0 < code < 128 and code != LOST and (codes.get(0) != 2 or code != 2):
            for line in _last_lines(logs, local):
                say(f"{processes.names[local]}: {line}")
    return 1 if ended is None else ended


def _last_lines(logs: Path, local: int) -> list[str]:
    """Returns the last lines of a process's standard error."""
    attempts = sorted(logs.glob(f"*/attempt_*/{local}/stderr.log"), key=lambda path: path.stat().st_mtime)
    text = attempts[-1].read_text("utf-8", "replace") if attempts else ""
    return [line.rpartition("\r")[2] for line in text.split("\n") if line][-_LINES:]


@contextmanager
def variables(ours: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables within the block; the agent's processes inherit them."""
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _sigquit_restored() -> Iterator[None]:
    """Restores the handler of SIGQUIT after the block: torch's agent sets its own and leaves it."""
    before = signal.getsignal(signal.SIGQUIT)
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, before)
