"""Work in a process of its own that is killed when its time is up, with all that it has started.

A kernel that hangs can't be interrupted by the process that waits for it. The process is forked, as imports take
seconds: the caller must not have touched CUDA, which does not survive a fork.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_DYING = 5.0
"""Seconds that a killed process gets to end: a driver may hold it."""


def bounded(run: Callable[[], int], seconds: float) -> int | None:
    """The exit code of `run()`, negative for a signal; None where it was killed as it took longer.

    Its processes have ended when this returns, or when it is left by an exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ended, mine = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads at a fork: NumPy's have nothing to do
        child = os.fork()
    if child == 0:
        os.close(ended)
        _child(run)
    os.close(mine)
    with suppress(OSError):
        os.setpgid(child, child)
    try:
        in_time = bool(select.select([ended], [], [], max(0.0, seconds))[0])
    finally:
        status = None
        if _kill(child, ended):
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        else:
            print(f"process {child} does not end: its driver holds it", file=sys.stderr)
        os.close(ended)
    return status if in_time else None


def _kill(child: int, ended: int) -> bool:
    """Kills the group of a child, and waits until nobody holds the other end of the pipe."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return bool(select.select([ended], [], [], _DYING)[0])


def _child(run: Callable[[], int]) -> None:
    """Ends this process with what `run` returns, at once: what CUDA and others would do at the end may hang."""
    code = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # with the caller
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
