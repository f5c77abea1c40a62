"""Ends loops that are unfinished when the interpreter exits.

The pipeline's threads wait for the loop, and the interpreter waits for its threads. `atexit` and `weakref.finalize` run
too late: after the threads have been joined.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Endable(Protocol):
    """A loop that can be ended by another thread."""

    def end_quietly(self) -> None:
        """Ends the loop's threads and waits for them. Returns at once in a forked child, which has none of them."""


_LOOPS: weakref.WeakSet[Endable] = weakref.WeakSet()
_LOCK = threading.Lock()
_REGISTERED: list[bool] = []


def end_at_exit(loop: Endable) -> None:
    """Ends the loop, if it is there still, before the interpreter waits for threads."""
    with _LOCK:
        _LOOPS.add(loop)
        if not _REGISTERED:
            _REGISTERED.append(True)  # also in processes that are forked from this one
            # The only callback that runs before threads are joined; concurrent.futures uses it for the same reason.
            threading._register_atexit(_end_all)  # type: ignore[attr-defined]


def _end_all() -> None:
    for loop in list(_LOOPS):
        loop.end_quietly()
