"""One thread of this process that looks after all endpoints at which no thread waits, and that no receiver has.

With a thread for each endpoint, a trainer with 1,000 peers would have 1,000 threads that wake up ten times a second.

Guarantees: the thread lives from the first `add` to the last `remove`. After `remove` it does not touch the endpoint.
"""

from __future__ import annotations

import threading
from typing import Protocol

KEEP = 0.1
"""Seconds between two rounds."""


class Kept(Protocol):
    """What is looked after."""

    def tend(self) -> None:
        """Takes in what has arrived, unless another thread does; waits for nothing, and raises nothing."""


class Keeper:
    """Calls `tend` of each of its endpoints every `KEEP` seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, Kept] = {}
        self._thread: tuple[threading.Thread, threading.Event] | None = None

    def add(self, endpoint: Kept) -> None:
        """Looks after an endpoint from now on."""
        with self._lock:
            self._kept[id(endpoint)] = endpoint
            if self._thread is None:
                ending = threading.Event()
                thread = threading.Thread(target=self._run, args=(ending,), name="transport")
                self._thread = thread, ending
                try:
                    thread.start()
                except BaseException:  # also a signal's: the thread may run already
                    ending.set()
                    self._thread = None
                    del self._kept[id(endpoint)]
                    raise

    def remove(self, endpoint: Kept) -> None:
        """Looks after it no more; that of an endpoint that is not looked after does nothing."""
        with self._lock:
            self._kept.pop(id(endpoint), None)
            if self._kept or self._thread is None:
                return
            (thread, ending), self._thread = self._thread, None
        ending.set()
        thread.join()

    def _run(self, ending: threading.Event) -> None:
        while not ending.wait(KEEP):
            with self._lock:
                for endpoint in self._kept.values():
                    endpoint.tend()


KEEPER = Keeper()
"""That of this process."""
