"""What a process of a run does when its parent, an agent or a guard, ends or is stopped."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from marius_oac.errors import MariusOacError
from marius_oac.nodes.launch.frozen import frozen_end

PARENT = "MARIUS_OAC_PARENT"
"""Environment variable: pid of the parent, which this process must not outlive."""
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def end_with_parent() -> None:
    """Has the kernel kill this process when its parent, an agent or a guard, ends (on Linux).

    Raises:
        MariusOacError: the parent has ended already.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.environ.get(PARENT)
    if parent is not None and int(parent) != os.getppid():
        raise MariusOacError("the launcher has ended")


@contextmanager
def stopped_with_parent(timeout: float) -> Iterator[None]:
    """Within the block this process is asked to stop when its parent, an agent or torchrun, has been stopped for
    `timeout` seconds; after as long again, to stop at once."""
    parent, this = os.getppid(), os.getpid()
    with frozen_end(lambda: [parent], timeout, lambda pid: os.kill(this, signal.SIGINT)):
        yield
