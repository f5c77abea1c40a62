"""Ends loops that are unfinished when the interpreter exits.

The pipeline's threads wait for the loop, and the interpreter waits for its threads. `atexit` and `weakref.finalize` run
too late: after the threads have been joined.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Endable(Protocol):
    """A loop that can be ended by another thread."""

    def end_quietly(self) -> None:
        """Ends the loop's threads and waits for them."""


_LOOPS: weakref.WeakSet[Endable] = weakref.WeakSet()
_LOCK = threading.Lock()
_REGISTERED: list[int] = []


def end_at_exit(loop: Endable) -> None:
    """Ends the loop, if it is there still, before the interpreter waits for threads. Nothing in a forked child, which
    has none of them."""
    with _LOCK:
        _LOOPS.add(loop)
        if not _REGISTERED:
            _REGISTERED.append(os.getpid())
            # The only callback that runs before threads are joined; concurrent.futures uses it for the same reason.
            threading._register_atexit(_end_all)  # type: ignore[attr-defined]


def _end_all() -> None:
    if os.getpid() in _REGISTERED:
        for loop in list(_LOOPS):
            loop.end_quietly()
