"""One node's processes, started and watched by torchrun's agent in this process.

Guarantees:
- A process that fails ends them all, with its exit code, and a message that names its node. Those that are asked to
  end and don't are killed.
- SIGINT, SIGTERM, SIGHUP are passed on to every process, once each time they come: the first stops a trainer after the
  batches in flight, the second at once.
- No process outlives the agent, even if it is killed (`end_with_agent`, which each process calls).
- Standard output and error of the first process are this process's own. What another says is shown if it fails first.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from marius_oac.console import say
from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.nodes.cluster import endpoint
from marius_oac.runtime.signals import StopSignal

MEETING = 600  # seconds that nodes wait for each other to be started
SAVING = 600  # seconds that a process which was asked to stop may take to write a checkpoint (torch 2.11: 30)
_AGENT_VARIABLE = "MARIUS_OAC_AGENT"
NO_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_LINES = 40  # of what a process said before it failed
_ASKED = (-signal.SIGTERM, -signal.SIGINT)  # exit codes of those that were asked to end
_LOST = "marius-oac: node "  # how the last line of a process begins that ended because another one did

_ENDED_BY: list[BaseException] = []
"""What holds torch's rendezvous until the process ends. Its timer, which is not stopped after a signal, would otherwise
end within its own thread at times, and show a traceback."""


@dataclass(frozen=True)
class Crew:
    """The processes of one node.

    Attributes:
        command: of each process, without the interpreter.
        names: of each process, for messages.
        nodes: agents that meet, this one among them.
        endpoint: where they meet: HOST:PORT, or the path of a file if they are all here.
        host: whether this agent keeps the store by which they meet, on that host's address alone.
        environment: variables that the processes get beside this one's own.
        address: this node's, as the others know it.
        restarts: how often the processes are started again after one failed.
    """

    command: Sequence[str]
    names: Sequence[str]
    endpoint: str
    nodes: int = 1
    host: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    restarts: int = 0


def run(crew: Crew) -> int:
    """Runs the processes until all have ended; returns the exit code: 0, the failed one's, or 128 and the signal.

    Raises:
        NodeLost: a process was ended by a signal that nobody here sent.
        MariusOacError: the other nodes did not come, or the first one, where they meet, has ended.
    """
    with _variables({"TORCH_CPP_LOG_LEVEL": "ERROR"}):  # at the end agents lose sight of each other, which is no news
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous.api import RendezvousError
        from torch.distributed.launcher.api import elastic_launch

    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.addHandler(logging.NullHandler())
    elastic.propagate = False  # what it has to say of a failure is said below, in a line
    ours = {**crew.environment, _AGENT_VARIABLE: str(os.getpid()), NO_SHARED_STORE: "1"}
    with tempfile.TemporaryDirectory(prefix="marius-oac-") as logs, _variables(ours), _signals_restored():
        kept = _keep_store(crew) if crew.host else None
        try:
            elastic_launch(_launch_config(crew, logs), sys.executable)(*crew.command)
            failures = {}
        except ChildFailedError as error:
            failures = error.failures
        except SignalException as error:
            _ENDED_BY.append(error)
            return 128 + int(error.sigval)
        except RendezvousError as error:
            why = _first_line(error)
            raise MariusOacError(f"the other nodes are not to be met at {crew.endpoint}: {why}") from error
        finally:
            del kept
        return _explain(crew, failures, Path(logs)) if failures else 0


def end_with_agent() -> None:
    """From now on this process, one that an agent started, is killed when its agent ends (on Linux).

    Raises:
        MariusOacError: the agent has ended already.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    agent = os.environ.get(_AGENT_VARIABLE)
    if agent is not None and int(agent) != os.getppid():
        raise MariusOacError("the launcher has ended")


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


def _launch_config(crew: Crew, logs: str) -> Any:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING))
    return LaunchConfig(
        min_nodes=crew.nodes,
        max_nodes=crew.nodes,
        nproc_per_node=len(crew.names),
        run_id="marius-oac",
        role="node",
        rdzv_backend="c10d",
        rdzv_endpoint=crew.endpoint,
        rdzv_configs=_meeting(crew),
        local_addr=crew.address,
        max_restarts=crew.restarts,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(logs, redirects=dict.fromkeys(range(1, len(crew.names)), Std.ALL)),
    )


def _meeting(crew: Crew) -> dict[str, Any]:
    """How agents meet. torch's own store would listen on every interface, so this agent or a file keeps it."""
    if crew.nodes == 1:
        return {"store_type": "file"}
    return {"is_host": "false", "read_timeout": MEETING, "timeout": MEETING}


def _keep_store(crew: Crew) -> Any:
    """The store by which agents meet. Raises InputError where the port is taken, or the address is another's."""
    host, _, port = crew.endpoint.rpartition(":")
    return listen(host.strip("[]"), int(port), MEETING)


def listen(host: str, port: int, patience: float) -> Any:
    """torch's store on one address alone. Raises InputError where the port is taken, or the address is another's."""
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listening:
            seconds, descriptor = timedelta(seconds=patience), os.dup(listening.fileno())
            return TCPStore(host, port, None, True, seconds, wait_for_workers=False, master_listen_fd=descriptor)
    except OSError as error:
        raise InputError(f"can't listen there: {os.strerror(error.errno).lower()}", endpoint(host, port)) from None


def _explain(crew: Crew, failures: Mapping[int, Any], logs: Path) -> int:
    """Says whose failure ended the run; returns the exit code."""
    soonest = min(each.timestamp for each in failures.values())
    for each in failures.values():  # later ones were killed because they did not end
        if each.exitcode < 0 and each.exitcode not in _ASKED and each.timestamp <= soonest + 1:
            how = signal.Signals(-each.exitcode).name
            raise NodeLost(crew.names[each.local_rank], f"process {each.pid} was ended by {how}")
    codes = {each.local_rank: each.exitcode for each in failures.values() if 0 < each.exitcode < 128}
    said = {local: _said(logs, local) for local in codes if local}
    causes = [local for local, lines in said.items() if not lines[-1:] or not lines[-1].startswith(_LOST)]
    for local in causes:
        if codes.get(0) != 2 or codes[local] != 2:  # 2: all have refused alike, and the first has said so
            for line in said[local]:
                say(f"{crew.names[local]}: {line}")
    return codes[causes[0]] if causes else next(iter(codes.values()), 1)


def _said(logs: Path, local: int) -> list[str]:
    """The last lines that a process said on standard error."""
    attempts = sorted(logs.glob(f"*/attempt_*/{local}/stderr.log"), key=lambda path: path.stat().st_mtime)
    text = attempts[-1].read_text("utf-8", "replace") if attempts else ""
    return [line.rpartition("\r")[2] for line in text.split("\n") if line][-_LINES:]


@contextmanager
def _variables(ours: Mapping[str, str]) -> Iterator[None]:
    """The agent's processes inherit this process's variables."""
    before = {name: os.environ.get(name) for name in (*ours, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")}
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


def _first_line(error: Exception) -> str:
    return str(error.__cause__ or error).partition("\n")[0]
