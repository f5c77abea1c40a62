"""What a process of a run does when its parent, an agent or a guard, ends or is stopped."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from marius_oac.errors import MariusOacError, NodeLost
from marius_oac.nodes.launch.frozen import frozen_end, is_stopped, kill
from marius_oac.runtime.signals import FORCED_SECONDS

PARENT = "MARIUS_OAC_PARENT"
"""Environment variable: pid of the parent, which this process must not outlive."""
TOLD = "MARIUS_OAC_TOLD"
"""Environment variable: a folder of the agent's, where its processes make files of what they tell it."""
MET = "met"
"""Told by a process that has met all others of its start. Before, it needs every agent."""
SPARE = "spare"
"""Told by a process without which the run can go on."""
_PATIENCE = 2 * FORCED_SECONDS  # seconds until a process that was asked to stop at once is killed
_OF_A_RUN = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")  # variables that torchrun sets
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def bound(command: Sequence[str]) -> list[str]:
    """Returns the command to start in place of this one, so that the kernel kills the process when the thread that has
    started it ends.

    `setpriv` of util-linux asks the kernel and then becomes the command, with the same pid. The process itself could
    ask only when Python has started. If it is stopped (SIGSTOP) before that, it would outlive its parent for ever.
    Where `setpriv` is not there, or cannot do it (util-linux before 2.33), the command is returned as it is.
    """
    return [*_asking_the_kernel(), *command]


@cache
def _asking_the_kernel() -> tuple[str, ...]:
    path = shutil.which("setpriv")
    if path is None:
        return ()
    words = (path, "--pdeathsig", "KILL")
    tried = subprocess.run([*words, path, "--version"], stdin=subprocess.DEVNULL, capture_output=True)
    return () if tried.returncode else words


def end_with_parent() -> None:
    """Has the kernel kill this process when its parent, an agent or a guard, ends (on Linux): see `bound`.

    Raises:
        MariusOacError: the parent has ended already.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.environ.get(PARENT)
    if parent is not None and int(parent) != os.getppid():
        raise MariusOacError("the launcher has ended")


def tell_agent(what: str) -> None:
    """Tells the agent that has started this process, if one has, what it is from now on: `MET` or `SPARE`."""
    if TOLD in os.environ:
        (Path(os.environ[TOLD]) / f"{os.getpid()}.{what}").touch()


def has_told(folder: Path, pid: int, what: str) -> bool:
    """Whether a process has told its agent so, whose folder that is."""
    return (folder / f"{pid}.{what}").exists()


@contextmanager
def stopped_with_parent(timeout: float) -> Iterator[None]:
    """Within the block this process is asked to stop when its parent, an agent or torchrun, has been stopped for
    `timeout` seconds; after as long again, to stop at once.

    A process that has then not ended `_PATIENCE` later is killed: no signal is handled while compiled code runs, such
    as torch's when it connects to a store that the parent passes on. Before a process of an agent has met the others it
    has nothing to save, so it is killed that long after the first request.

    If the block ends with NodeLost under the user's own torchrun, trainers beside this one that are stopped are killed.
    torchrun would do so itself, 30 s later. An agent of ours has done so.
    """
    parent, this = os.getppid(), os.getpid()
    asked, ended = False, threading.Event()

    def stop(pid: int) -> None:
        nonlocal asked
        os.kill(this, signal.SIGINT)
        last = asked or (TOLD in os.environ and not has_told(Path(os.environ[TOLD]), this, MET))
        if last and not ended.wait(_PATIENCE):
            kill(this)
        asked = True

    try:
        with frozen_end(lambda: [parent], timeout, stop):
            try:
                yield
            finally:
                ended.set()
    except NodeLost:
        for pid in [] if PARENT in os.environ else _siblings(parent):
            if is_stopped(pid):
                kill(pid)
        raise


def _siblings(parent: int) -> list[int]:
    """Returns the other trainers of this run that the parent, torchrun, has started; none if torchrun has ended: a
    process that takes its place has children of any other program."""
    import psutil  # not before a process has asked to end with its parent

    found = []
    with suppress(psutil.Error):
        own = psutil.Process().environ()
        for each in psutil.Process(parent).children() if os.getppid() == parent else []:
            with suppress(psutil.Error):
                theirs = each.environ()
                same = all(theirs.get(name) == own.get(name) for name in _OF_A_RUN)
                if each.pid != os.getpid() and "LOCAL_RANK" in theirs and same:
                    found.append(each.pid)
    return found
