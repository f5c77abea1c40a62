"""One node's processes, started and watched by torchrun's agent in this process.

Guarantees:
- A process that fails ends them all, with its exit code, and a message that names its node. Those that are asked to
  end and don't are killed.
- SIGINT, SIGTERM, SIGHUP are passed on to every process, once each time they come: the first stops a trainer after the
  batches in flight, the second at once.
- After the loss of a node all processes are started again, `restarts` times at most; after any other end none is.
- No process outlives the agent, even if it is killed (`end_with_parent`, which each process calls).
- Standard output and error of the first process are this process's own. What another says is shown if it fails first.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from marius_oac.config.cluster import SECRET_VARIABLE, START_VARIABLE
from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.nodes.launch.cluster import endpoint
from marius_oac.nodes.launch.tunnel import LOOPBACK, StoreGate, StoreLine
from marius_oac.nodes.transport.contract import TAKEN, Security
from marius_oac.runtime.console import logger, say
from marius_oac.runtime.signals import StopSignal

SAVING = 600  # seconds that a process which was asked to stop may take to write a checkpoint (torch: 30)
PARENT = "MARIUS_OAC_PARENT"  # variable: the process that has started this one, and must not be outlived
SPARE = (
    "MARIUS_OAC_SPARE"  # variable: a folder; a process that the run can lose makes a file there, named by its number
)
LOST = 75  # exit code of a process that has lost another node: its agent may start it again
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_LINES = 40  # of what a process said before it failed
_ASKED = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)  # exit codes of those that were asked to end


@dataclass(frozen=True)
class LocalProcesses:
    """The processes of one node.

    Attributes:
        command: of each process, without the interpreter.
        names: of each process, for messages.
        nodes: names of all nodes, whose agents meet; `index`: which of them this is.
        endpoint: IP:PORT where they meet, if they are several: the first node's agent listens there.
        secret: of the run.
        address: this node's, as the others know it.
        restarts: how often all processes are started again after one was lost.
        timeout: seconds after which an agent that is silent is lost.
        patience: seconds that agents wait for each other.
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
    """Runs the processes until all have ended; returns the exit code: 0, the failed one's, or 128 and the signal.

    Raises:
        NodeLost: a process was ended by a signal that nobody here sent; or the agent of another node has not come, has
            ended, or does not answer.
        InputError: the agents can't meet here, or there is another one of this node.
    """
    with _variables({"TORCH_CPP_LOG_LEVEL": "ERROR"}):  # at the end agents lose sight of each other, which is no news
        from torch.distributed import DistError
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from marius_oac.nodes.launch.elastic import Agent
        from marius_oac.nodes.launch.meeting import Meeting

    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.addHandler(logging.NullHandler())
    elastic.propagate = False  # what it has to say of a failure is said below, in a line
    ours = {SECRET_VARIABLE: processes.secret, PARENT: str(os.getpid()), START_VARIABLE: ""}
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="marius-oac-") as logs,
        tempfile.TemporaryDirectory(prefix="marius-oac-") as spare,
        _variables(ours | {SPARE: spare}),
        _signals_restored(),
        _store_of(processes) as store,
    ):
        meeting = Meeting(store, processes.nodes, processes.index, processes.patience, began, grace=processes.timeout)
        about = (processes.command, len(processes.names), processes.address, processes.restarts, SAVING, logs)
        agent = Agent(meeting, *about, exit_code_of, lambda pid, code: _spared(processes, Path(spare), pid, code))
        try:
            failures = agent.run().failures
        except SignalException as error:
            if not agent.failures:
                return 128 + int(error.sigval)
            failures = agent.failures  # the others are told to stop because of it
        except DistError as error:
            why = str(error).partition("\n")[0]
            raise NodeLost(processes.nodes[0], f"its agent, through which all meet, has ended: {why}") from error
        return _explain(processes, failures, Path(logs)) if failures else 0


def exit_code_of(codes: Sequence[int]) -> int | None:
    """What the exit codes of a node's processes come to; None: one was lost, here or elsewhere: they may be started
    again. A mistake, a full disk or a defect would be there the next time, too; who was asked to stop is to stop.
    """
    defects = [code for code in codes if 0 < code < 128 and code != LOST]
    if defects:
        return max(defects)
    if any(code == LOST or (code < 0 and code not in _ASKED) for code in codes):
        return None
    return next(128 - code if code < 0 else code for code in codes)


def _spared(processes: LocalProcesses, spare: Path, pid: int, code: int) -> bool:
    """Whether the run goes on without the process that has ended so; says so."""
    if code >= 0 or code in _ASKED or not (spare / str(pid)).exists():
        return False
    name = signal.Signals(-code).name
    logger.warning(
        f"node {processes.nodes[processes.index]}: process {pid} was ended by {name}; the run goes on without it"
    )
    return True


def end_with_parent() -> None:
    """From now on this process, which an agent or a guard started, is killed when that ends (on Linux).

    Raises:
        MariusOacError: it has ended already.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.environ.get(PARENT)
    if parent is not None and int(parent) != os.getppid():
        raise MariusOacError("the launcher has ended")


@contextmanager
def told_if_lost() -> Iterator[None]:
    """Within the block, NodeLost gets an exit code by which this process's agent knows it from all other failures."""
    try:
        yield
    except NodeLost as error:
        if PARENT in os.environ and error.exit_code == NodeLost.exit_code:
            error.exit_code = LOST
        raise


@contextmanager
def told_to_end() -> Iterator[None]:
    """What SIGTERM does to a process within the block, outside of a training loop: it stops it, as Ctrl-C does.

    An agent sends it to all when one has failed. The one that has failed is on its way out, and must be let to say why.
    """

    def handle(number: int, frame: object) -> None:
        if sys.exception() is None:
            raise StopSignal(number)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    except BaseException:
        before = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _store_of(processes: LocalProcesses) -> Iterator[Any]:
    """The store by which agents meet, and then their processes: the first node's agent keeps it on the loopback.

    Raises:
        InputError: the port is taken, or the address is another's; or there is another agent of this node.
        NodeLost: the first node's agent is not there, or has another secret.
    """
    from torch.distributed import TCPStore

    secret = hashlib.sha256(processes.secret.encode()).digest()
    about = Security(secret=secret, run="rendezvous"), processes.timeout
    if processes.index:
        with _store_line(processes, *about) as line:
            patience = timedelta(seconds=processes.patience)
            yield TCPStore(LOOPBACK, line.port, None, False, patience, wait_for_workers=False)
        return
    store = listen(LOOPBACK, 0, processes.patience)
    several = len(processes.nodes) > 1
    with StoreGate(processes.endpoint, store.port, processes.nodes, *about, _log) if several else nullcontext():
        yield store


def _store_line(processes: LocalProcesses, security: Security, timeout: float) -> StoreLine:
    try:
        return StoreLine(processes.endpoint, processes.nodes[0], processes.index, security, timeout, processes.patience)
    except NodeLost as error:
        if str(error).endswith(TAKEN):
            raise InputError("is there already: two were started of the same name", _node(processes)) from None
        raise


def _node(processes: LocalProcesses) -> str:
    return f"node {processes.nodes[processes.index]}"


def _log(line: str) -> None:
    logger.warning(line)


def listen(host: str, port: int, patience: float) -> Any:
    """torch's store on one address alone; port 0: any that is free.

    Raises:
        InputError: the port is taken, or the address is another's.
    """
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listening:
            seconds, descriptor = timedelta(seconds=patience), os.dup(listening.fileno())
            port = listening.getsockname()[1]
            return TCPStore(host, port, None, True, seconds, wait_for_workers=False, master_listen_fd=descriptor)
    except OSError as error:
        raise InputError(f"can't listen there: {os.strerror(error.errno).lower()}", endpoint(host, port)) from None


def _explain(processes: LocalProcesses, failures: Mapping[int, Any], logs: Path) -> int:
    """Says whose failure ended the run; returns the exit code."""
    codes = {each.local_rank: each.exitcode for each in failures.values()}
    ended = exit_code_of(list(codes.values()))
    soonest = min(each.timestamp for each in failures.values())
    for each in failures.values() if ended is None else ():  # later ones were killed because they did not end
        if each.exitcode < 0 and each.exitcode not in _ASKED and each.timestamp <= soonest + 1:
            how = signal.Signals(-each.exitcode).name
            raise NodeLost(processes.names[each.local_rank], f"process {each.pid} was ended by {how}")
    for local, code in codes.items():
        # LOST: it ended because of another one. 2: all have refused alike, and the first has said so.
        if local and 0 < code < 128 and code != LOST and (codes.get(0) != 2 or code != 2):
            for line in _said(logs, local):
                say(f"{processes.names[local]}: {line}")
    return 1 if ended is None else ended


def _said(logs: Path, local: int) -> list[str]:
    """The last lines that a process said on standard error."""
    attempts = sorted(logs.glob(f"*/attempt_*/{local}/stderr.log"), key=lambda path: path.stat().st_mtime)
    text = attempts[-1].read_text("utf-8", "replace") if attempts else ""
    return [line.rpartition("\r")[2] for line in text.split("\n") if line][-_LINES:]


@contextmanager
def _variables(ours: Mapping[str, str]) -> Iterator[None]:
    """The agent's processes inherit this process's variables."""
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
def _signals_restored() -> Iterator[None]:
    """The agent puts handlers of its own in place, and leaves them there."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
