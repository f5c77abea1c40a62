"""Threads that stop together.

Guarantees:
- The first exception of any worker is kept, `on_failure` is called to wake the other workers, and `join` raises that
  same exception with its traceback after every thread has ended.
- `Closed` ends a worker without an error: its channel has no more items.
- Leaving the `with` block waits for every thread, also when its body raises (Ctrl-C in the caller included, any number
  of times). No thread is a daemon; none outlives the block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from marius_oac.runtime.channel import Closed


class Workers:
    """A group of threads.

    Args:
        on_failure: must make all workers return soon; may be called from any thread.
        bind: called by each thread, before its work, with the name under which it was started.
    """

    def __init__(self, on_failure: Callable[[], None], bind: Callable[[str], object] | None = None):
        self._on_failure, self._bind = on_failure, bind
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._running = 0
        self._error: BaseException | None = None

    def start(self, name: str, count: int, work: Callable[[], None], when_all_done: Callable[[], None]) -> None:
        """Starts `count` threads that call `work()`; the last one to end without an error calls `when_all_done()`.

        Raises:
            RuntimeError: the system starts no more threads; leaving the `with` block ends those already started.
        """
        left = [count]

        def attempt() -> None:
            try:
                if self._bind is not None:
                    self._bind(name)
                work()
            except Closed:
                pass
            except BaseException as error:  # noqa: BLE001 - any error of a worker stops everything and is re-raised
                self._fail(error)
                return
            with self._lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                when_all_done()

        def run() -> None:
            try:
                attempt()
            finally:
                with self._ended:
                    self._running -= 1
                    self._ended.notify_all()

        for number in range(count):
            thread = threading.Thread(target=run, name=f"{name}-{number}")
            with self._lock:
                self._running += 1
            try:
                thread.start()
            except RuntimeError:  # the system starts no more threads: `_wait` must not count this one
                with self._ended:
                    self._running -= 1
                raise
            self._threads.append(thread)

    def join(self) -> None:
        """Waits for every thread, then raises the first error if there was one."""
        self._wait()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        # `Thread.join` alone would not do: interrupted by Ctrl-C it takes a running thread for dead (CPython 3.11), and
        # the next `join` returns at once.
        with self._ended:
            self._ended.wait_for(lambda: not self._running)
        for thread in self._threads:
            thread.join()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            first = self._error is None
            if first:
                self._error = error
        if first:
            self._on_failure()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        while True:
            try:
                self._on_failure()
                self._wait()
                return
            except KeyboardInterrupt:  # they are stopping already; leaving now would leave them behind
                continue
