"""Finds processes of this machine that are stopped (SIGSTOP), and what is done again and again beside a block.

A stopped process keeps its connections and its place, so nothing tells those who wait for it. Processes that depend on
each other look at each other's state instead: a launcher or agent at what it has started, and what was started at its
parent.

Guarantees: one thread per block, which ends with it. Whoever was stopped at every look for `timeout` seconds is told
of, again after as long.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marius_oac.runtime.workers import join

_LOOKS = 8
"""Within `timeout`."""


@contextmanager
def repeated(call: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Within the block a thread calls this every so many seconds, first at once."""
    ended = threading.Event()

    def run() -> None:
        call()
        while not ended.wait(seconds):
            call()

    thread = threading.Thread(target=run, name=name)
    try:
        thread.start()
        yield
    finally:
        ended.set()
        join(thread)


class Watched:
    """Looks at processes.

    Args:
        pids: returns those to look at.
        timeout: seconds after which one that is stopped counts as lost.
        lost: called with each that is.
        clock: seconds.
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]], timeout: float, lost: Callable[[int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self._pids, self._timeout, self._lost, self._clock = pids, timeout, lost or kill, clock
        self._since: dict[int, float] = {}

    def look(self) -> None:
        """Looks once."""
        now = self._clock()
        self._since = {pid: self._since.get(pid, now) for pid in self._pids() if is_stopped(pid)}
        for pid, since in list(self._since.items()):
            if now - since >= self._timeout:
                self._since[pid] = now
                self._lost(pid)


@contextmanager
def frozen_end(
    pids: Callable[[], Iterable[int]], timeout: float, lost: Callable[[int], object] | None = None
) -> Iterator[None]:
    """Within the block processes that are stopped for `timeout` seconds are killed, or given to `lost`."""
    with repeated(Watched(pids, timeout, lost).look, timeout / _LOOKS, "frozen processes"):
        yield


def is_stopped(pid: int) -> bool:
    """Whether there is such a process, stopped by a signal."""
    try:
        return _about(pid)[0] == "T"
    except OSError:
        return False


def age() -> float:
    """Returns the seconds since this process was started. Those in which it was stopped count."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_about(os.getpid())[19]) / os.sysconf("SC_CLK_TCK")


def _about(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on. The second, a name, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()


def kill(pid: int) -> None:
    """Kills a process."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
