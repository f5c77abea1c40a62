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
from marius_oac.runtime.signals import wait_for


def join(thread: threading.Thread) -> None:
    """Waits for a thread to end. One that does not run yet is not waited for: a signal may interrupt `Thread.start`."""
    if thread.is_alive():
        thread.join()


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

    def start(
        self, name: str, count: int, work: Callable[[], None], when_all_done: Callable[[], None]
    ) -> Callable[[int], None]:
        """Starts `count` threads that call `work()`; the last one to end without an error calls `when_all_done()`.

        Returns:
            A function for these threads: it starts so many more, unless the last one has ended.

        Raises:
            RuntimeError: the system starts no more threads; leaving the `with` block ends those already started.
        """
        group = _Group(self, name, work, when_all_done, count)
        for _ in range(count):
            group.begin()
        return group.more

    def join(self) -> None:
        """Waits for every thread, then raises the first error if there was one."""
        self._wait()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        # `Thread.join` alone would not do: interrupted by Ctrl-C it takes a running thread for dead (CPython 3.11), and
        # the next `join` returns at once.
        with self._ended:
            wait_for(self._ended, lambda: not self._running)
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


class _Group:
    """The threads of one call of `Workers.start`; `left` have not ended, or will be started."""

    def __init__(
        self, workers: Workers, name: str, work: Callable[[], None], when_all_done: Callable[[], None], left: int
    ):
        self._workers, self._name, self._work, self._when_all_done = workers, name, work, when_all_done
        self._left, self._begun = left, 0

    def more(self, count: int) -> None:
        """Starts so many more, unless the last one has ended. Called by one thread at a time, of the same workers."""
        for _ in range(count):
            with self._workers._lock:
                if not self._left:
                    return
                self._left += 1
            try:
                self.begin()
            except RuntimeError:
                self._one_ended()
                raise

    def begin(self) -> None:
        """Starts one of those that are `left`."""
        workers = self._workers
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._begun}")
        self._begun += 1
        with workers._lock:
            workers._running += 1
        try:
            thread.start()
        except RuntimeError:  # the system starts no more threads: `_wait` must not count this one
            with workers._ended:
                workers._running -= 1
            raise
        workers._threads.append(thread)

    def _run(self) -> None:
        workers = self._workers
        try:
            self._attempt()
        finally:
            with workers._ended:
                workers._running -= 1
                workers._ended.notify_all()

    def _attempt(self) -> None:
        try:
            if self._workers._bind is not None:
                self._workers._bind(self._name)
            self._work()
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - any error of a worker stops everything and is re-raised
            self._workers._fail(error)
            return
        self._one_ended()

    def _one_ended(self) -> None:
        with self._workers._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._when_all_done()
