"""What is compiled once, however many processes want it at once.

A run's processes, and those that compile beside it (`ahead`), begin with the same kernels. Who wants one that another
process is compiling waits, and finds it in Numba's cache.

The lock is the system's, on a file beside the kernel's in the cache: it goes with the process that holds it. Its holder
waits for nothing but functions that its own calls, so nobody waits for ever. Numba's cache needs it, too: two processes
that keep a function at once, for different arguments, could give both the same file.
"""

from __future__ import annotations

import fcntl
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from marius_oac.kernels import ahead
from marius_oac.runtime.standstill import Activity


@functools.cache
def check(folder: Path) -> None:
    """Makes the folder of the cache, if it is not there.

    Raises:
        OSError: it can't be written, or its file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ahead.USED, "a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def compiled(kernel: Any, signature: Any, patient: bool = True) -> Any:
    """What `compile` of a kernel returns that Numba keeps. None if another process is at it, unless this one is
    `patient`."""
    name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"
    place, activity = Path(kernel.stats.cache_path) / f"{name}.lock", Activity(f"kernel {name} is being compiled")
    with global_compiler_lock, ahead.compiling_here(), activity, _alone(place, patient) as alone:
        return type(kernel).compile(kernel, signature) if alone else None


@contextmanager
def _alone(place: Path, patient: bool) -> Iterator[bool]:
    """Within the block, if it is given True, no other process has the lock of this file."""
    with open(place, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not patient:
                yield False
                return
            ahead.begun()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield True


class _Listener(event.Listener):
    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith("marius_oac."):
            ahead.begun()

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Listener())
