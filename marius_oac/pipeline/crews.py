"""The threads of a stage, of which some work and the others are parked. They are started when they are first wanted.

Guarantees:
- A thread whose number is below `working` never waits here.
- `open` lets every thread pass, now and later: they find that their channel is closed or aborted, and end.
- A thread that holds a batch takes it to its channel before it parks: parking loses and delays no batch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress


class Crew:
    """`working` of the threads that `enlist` may pass; at least one."""

    def __init__(self, working: int):
        if working < 1:
            raise ValueError(f"at least one thread must work, not {working}")
        self.working = working
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._open = False
        self._started = working
        self._start: Callable[[int], None] = _none

    def started_by(self, start: Callable[[int], None]) -> None:
        """`working` threads have been started; `start` starts so many more, which call `enlist`."""
        self._start = start

    def enlist(self) -> int:
        """The calling thread's number."""
        return next(self._numbers)

    def wait_for_work(self, number: int) -> None:
        """Returns once thread `number` is one of those that work."""
        if number < self.working:  # without the lock: at worst it takes one more batch
            return
        with self._changed:
            self._changed.wait_for(lambda: self._open or number < self.working)

    def resize(self, working: int) -> None:
        """Sets how many work; wakes or starts those that begin to. Called by one thread at a time."""
        with self._changed:
            grows, self.working = working > self.working, working
            if grows:
                self._changed.notify_all()
        if working > self._started:
            with suppress(RuntimeError):  # the system starts no more threads: those that there are do the work
                self._start(working - self._started)
            self._started = working

    def open(self) -> None:
        """Lets every thread pass from now on."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


def _none(_: int) -> None:
    """Starts nothing."""
