"""Runs the same command on every node from one place: by ssh or, under Slurm, by srun.

Guarantees, beside those of `contract.Watch`:
- When this process ends, for whatever reason, or is stopped, the commands it started are asked to stop (see `guard`).
- Each command hears of this process every quarter of `timeout`, from a thread: output that nobody reads delays nothing.
- What is started here and then stopped (ssh, srun) counts as ended after `timeout`.
- The first node's output is shown as it is, that of others with the node's name before each line.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf

from marius_oac.config.cluster import ClusterConfig, NodeConfig
from marius_oac.errors import InputError
from marius_oac.nodes.launch.contract import REFUSED, SIGNALS, Started, Watch
from marius_oac.nodes.launch.frozen import frozen_end, repeated
from marius_oac.nodes.launch.guard import ALIVE, STOP
from marius_oac.runtime.console import say
from marius_oac.runtime.signals import handled, woken_by_signals
from marius_oac.types import present


def commands(
    cluster: ClusterConfig, words: Sequence[str], environment: Mapping[str, str] = os.environ
) -> list[tuple[str, list[str]]]:
    """Returns each node's name and the command that starts it from here.

    Args:
        cluster: the nodes.
        words: the arguments of Python on a node; `--node NAME` is added.
        environment: if it has SLURM_JOB_ID, srun starts them.
    """
    return [
        (
            node.name,
            reach(
                cluster, node,
                ["-P", "-m", "marius_oac.nodes.launch.guard", f"{cluster.timeout:g}", python_of(node), *words,
                 "--node", node.name], environment,
            ),
        )
        for node in cluster.nodes
    ]  # fmt: skip


def python_of(node: NodeConfig) -> str:
    """Returns the path of a node's Python."""
    return node.python or sys.executable


def reach(
    cluster: ClusterConfig, node: NodeConfig, words: Sequence[str], environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Returns the command that runs a node's Python with these arguments, by ssh or srun; it passes on its input."""
    folder, there = node.directory or os.getcwd(), [python_of(node), *words]
    if "SLURM_JOB_ID" in environment:  # a step on one node; threads are bound by the program itself, if at all
        step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", "--cpu-bind=none", "--unbuffered"]
        return [*step, f"--chdir={folder}", *there]
    alive = max(1, int(cluster.timeout / 3))
    options = ("BatchMode=yes", "ConnectTimeout=10", f"ServerAliveInterval={alive}", "ServerAliveCountMax=3")
    ssh = ["ssh", *(word for option in options for word in ("-o", option)), node.address]
    return [*ssh, f"cd {shlex.quote(folder)} && exec {shlex.join(there)}"]


_TERMINATED = 2.0  # seconds that ssh or srun has to end after SIGTERM
_LAST_WORDS = 5.0  # seconds in which output is awaited of what may have outlived all commands


@dataclass
class _Started(Started):
    """A node's command that this process has started, by ssh or srun."""

    name: str
    process: subprocess.Popen[bytes]
    partial: dict[int, bytes] = field(default_factory=dict)
    writing: threading.RLock = field(default_factory=threading.RLock)  # a signal's handler writes, too

    def ask(self, again: bool) -> None:
        """See `Started.ask`. Its guard takes the end of the input for the second request."""
        self.write(None if again else STOP)

    def write(self, said: bytes | None) -> None:
        """Sends bytes to the command's guard; None closes its input. A guard that has ended gets nothing."""
        guard = present(self.process.stdin)
        with self.writing, suppress(BrokenPipeError):
            if said is None:
                guard.close()
            elif not guard.closed:
                guard.write(said)

    def show(self, descriptor: int) -> bool:
        """Shows new output; returns False at its end."""
        found = os.read(descriptor, 1 << 16)
        *lines, rest = (self.partial.pop(descriptor, b"") + found).split(b"\n")
        if not found and rest:
            lines, rest = [*lines, rest], b""
        if rest:
            self.partial[descriptor] = rest
        for line in lines:
            say(f"{self.name}: {line.decode('utf-8', 'replace').rstrip()}")
        return bool(found)


def start(each: Sequence[tuple[str, Sequence[str]]], secret: str, timeout: float) -> int:
    """Runs the commands until all have ended; returns the exit code.

    Args:
        each: names of the nodes and their commands.
        secret: of the run, which is sent to each guard.
        timeout: seconds after which a guard that hears nothing stops its command.

    Raises:
        InputError: ssh or srun is not here.
    """
    started: list[_Started] = []

    def renew() -> None:
        for one in list(started):
            one.write(ALIVE)

    def running() -> list[int]:
        return [one.process.pid for one in list(started) if one.process.returncode is None]

    try:
        with repeated(renew, timeout / 4, "leases"), frozen_end(running, timeout):
            for name, command in each:
                one = _launched(name, command, subprocess.PIPE if started else None)
                with one.writing:  # nothing comes before the secret
                    started.append(one)
                    one.write(f"{secret}\n".encode() + ALIVE)  # at once: this process may be stopped in between
            return _Watch(started).until_all_have_ended()
    finally:
        _end(started)


def _launched(name: str, command: Sequence[str], show: int | None) -> _Started:
    try:
        process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=show, stderr=show, start_new_session=True
        )
    except FileNotFoundError:
        raise InputError(f"there is no {command[0]} here to start it with", f"node {name}") from None
    return _Started(name, process)


def _end(started: Sequence[_Started]) -> None:
    """Ends ssh or srun; one that is stopped (SIGSTOP) hears nothing, and is killed."""
    for one in started:
        one.write(None)
        if one.process.poll() is None:
            one.process.terminate()
    until = time.monotonic() + _TERMINATED
    for one in started:
        try:
            one.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        for stream in (one.process.stdout, one.process.stderr):
            if stream is not None:
                stream.close()


def end_of(code: int) -> tuple[int, str]:
    """Returns the exit code to report for a node, and how it has ended, in words.

    Args:
        code: of the node's guard, or of ssh or srun; negative where a signal has ended that.
    """
    number = code - 128 if code > 128 else max(0, -code)
    try:
        name = signal.Signals(number).name
    except ValueError:
        return (code if code in (0, REFUSED) else 1), f"ended with exit code {code}"
    if number in SIGNALS:
        return 128 + number, f"was stopped by {name}"
    return 1, f"was ended by {name}"


class _Watch(Watch):
    """Watches the output and the ends of all commands, and handles signals."""

    started: Sequence[_Started]

    def until_all_have_ended(self) -> int:
        with (
            ExitStack() as stack,
            selectors.DefaultSelector() as selector,
            handled(SIGNALS, self.interrupted),
            woken_by_signals(selector) as bell,
        ):
            for one in self.started:
                process = os.pidfd_open(one.process.pid)
                stack.callback(os.close, process)
                selector.register(process, selectors.EVENT_READ, partial(self._ended, one))
                for stream in (one.process.stdout, one.process.stderr):
                    if stream is not None:
                        selector.register(stream, selectors.EVENT_READ, partial(one.show, stream.fileno()))
            while len(selector.get_map()) > 1 and self.asked < 3:
                ready = selector.select(self.left)
                if not ready:
                    break
                for key, _ in ready:
                    if key.fileobj is bell:
                        bell.recv(4096)
                    elif not key.data():
                        selector.unregister(key.fileobj)
        return self.code

    def _ended(self, one: _Started) -> bool:
        """Handles the end of a command; returns False, as `show` does at the end."""
        self.ended(one, *end_of(one.process.wait()))
        if all(each.process.returncode is not None for each in self.started):
            self.deadline = min(self.deadline or inf, time.monotonic() + _LAST_WORDS)
        return False
