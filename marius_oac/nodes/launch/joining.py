"""Processes that join the others of this machine in the middle of a run, started by the first of them.

Guarantees:
- They end with the thread that has started them (on Linux), and at the latest with `Joining.__exit__`.
- Each says when it has imported everything and waits for the others; one that ends before is found at once.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from marius_oac.config.cluster import START_VARIABLE
from marius_oac.nodes.launch.agent import LOST
from marius_oac.nodes.launch.parent import PARENT, bound
from marius_oac.runtime.console import say
from marius_oac.runtime.machine.peer_memory import may_read

_READY = "MARIUS_OAC_READY"  # environment variable: the descriptor to write to
_READS = b"2"
_LINES = 10  # of a failed process's output that are shown
PATIENCE = 20.0  # seconds that they have to end, all together, when the first process does


def say_ready() -> None:
    """Called by each process before it waits for the others; a process that joins says that it does so, and whether it
    can read their memory."""
    descriptor = os.environ.pop(_READY, None)
    if descriptor is not None:
        os.write(int(descriptor), _READS if may_read(int(os.environ[PARENT])) else b"1")
        os.close(int(descriptor))


def started_as(count: int, start: str) -> dict[str, str]:
    """Variables of all processes of a machine that are `count` from now on, and find each other by that name."""
    return {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), START_VARIABLE: start}


class _Joiner:
    """One process. `ready` says whether it waits for the others, `reads` whether it can read the memory of its parent;
    `said` is the end of its output."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]):
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._mine, theirs = os.pipe()
        self.ready = self.reads = False
        try:
            self.process = subprocess.Popen(
                bound(command), stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
                pass_fds=[theirs], start_new_session=True, env={**os.environ, **variables, _READY: str(theirs)},
            )  # fmt: skip
        finally:
            os.close(theirs)

    @property
    def said(self) -> list[str]:
        self._output.seek(0)
        return [line for line in self._output.read().decode("utf-8", "replace").splitlines() if line][-_LINES:]

    def look(self, seconds: float) -> bool:
        """Waits so long for its word; returns whether it has ended without it."""
        if not self.ready and select.select([self._mine], [], [], seconds)[0]:
            word = os.read(self._mine, 1)
            self.ready, self.reads = bool(word), word == _READS
            return not self.ready
        return False

    def close(self) -> None:
        os.close(self._mine)
        self._output.close()


class Joining:
    """All processes that have joined, or are about to. One thread calls `start` and `wait`; that thread must live as
    long as they do.

    Args:
        run: the folder that they continue.
    """

    def __init__(self, run: Path):
        self._run = run
        self._joiners: dict[int, _Joiner] = {}
        self._last = range(0)  # ranks that were started together

    def start(self, ranks: range, count: int, start: str) -> None:
        """Starts processes with these ranks of `count`."""
        command = [sys.executable, "-P", "-m", "marius_oac", "resume", str(self._run), "--local-nodes", str(count)]
        about, self._last = started_as(count, start) | {PARENT: str(os.getpid())}, ranks
        for rank in ranks:
            self._joiners[rank] = _Joiner(command, {**about, "RANK": str(rank), "LOCAL_RANK": str(rank)})

    @property
    def reads(self) -> bool:
        """Whether those that were started last can read the memory of this process."""
        return all(self._joiners[rank].reads for rank in self._last)

    def wait(self, seconds: float) -> bool:
        """Waits at most so long for the next word; returns whether all have said that they are ready.

        Raises:
            ChildProcessError: one has ended instead; all that were started together with it are ended.
        """
        waiting = {rank: each for rank, each in self._joiners.items() if not each.ready}
        for rank, each in waiting.items():
            if each.look(seconds / len(waiting)):
                self.end(self._last)
                last = each.said[-1:] or [f"exit code {each.process.returncode}"]
                for gone in self._last:
                    self._joiners.pop(gone).close()
                raise ChildProcessError(f"trainer {rank} has not started: {last[0]}")
        return all(each.ready for each in self._joiners.values())

    def late(self) -> list[int]:
        """The processes that have not said yet that they are ready; called by any thread."""
        return [each.process.pid for each in list(self._joiners.values()) if not each.ready]

    def end(self, ranks: Sequence[int]) -> None:
        """Ends processes that have not joined."""
        for rank in ranks:
            self._joiners[rank].process.kill()
            self._joiners[rank].process.wait()

    def left(self, count: int) -> None:
        """Called after a change: those with a rank of `count` and more have left, and end."""
        until = time.monotonic() + PATIENCE
        for rank in [each for each in self._joiners if each >= count]:
            self._reap(rank, self._joiners.pop(rank), until)

    def close(self, count: int) -> None:
        """Ends those that have not become one of `count` trainers, and waits for all."""
        self.end([rank for rank in self._joiners if rank >= count])
        self.left(0)

    def _reap(self, rank: int, joiner: _Joiner, until: float) -> None:
        try:
            code = joiner.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            joiner.process.kill()
            code = joiner.process.wait()
        if 0 < code < 128 and code != LOST:
            for line in joiner.said:
                say(f"trainer {rank}: {line}")
        joiner.close()
