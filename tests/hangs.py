"""What forked programs do (see `forked`) when a test gives up waiting for one: the stacks of all their threads."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

_FILE, _SIGNAL = "stacks", signal.SIGUSR2
_PATIENCE = 2.0  # seconds that a process has to write its stacks; one that is stopped never does
_kept: list[int] = []


def tell_when_asked() -> None:
    """From now on this process writes its stacks when `stacks` of another one asks for them."""
    kept = os.memfd_create(_FILE)
    faulthandler.register(_SIGNAL, kept)
    while _kept:  # of the process that this one was forked from
        os.close(_kept.pop())
    _kept.append(kept)


def stacks() -> str:
    """Of all processes that this one has started, and those of theirs."""
    lines = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            lines.append(f"--- process {process.pid} of {process.ppid()}, {process.status()}")
            lines.append(_stacks_of(process.pid))
    return "\n".join(lines)


def _stacks_of(pid: int) -> str:
    folder = Path(f"/proc/{pid}/fd")
    found = [each for each in folder.iterdir() if os.readlink(each).startswith(f"/memfd:{_FILE} ")]
    if not found:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    before, deadline = found[0].stat().st_size, time.monotonic() + _PATIENCE
    os.kill(pid, _SIGNAL)
    sizes = [before]
    while (sizes[-1] == before or sizes[-1] != sizes[-2]) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
        sizes.append(found[0].stat().st_size)
    return found[0].read_bytes()[before:].decode() or "it does not answer"


def add_to(report, excinfo) -> None:
    """Adds them to the report of a test that has given up waiting."""
    if excinfo is not None and excinfo.errisinstance(subprocess.TimeoutExpired):
        report.sections.append(("what its processes do", stacks()))
