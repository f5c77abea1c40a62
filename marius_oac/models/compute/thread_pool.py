"""A pool of threads for the tasks of one stage of a batch.

Guarantees:
- `run` returns when every task has ended, or raises the error of one of them once all threads have stopped.
- Any thread may run any task. Tasks must not depend on that, nor on each other.
- `close` ends the threads; it may be called twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

Task = Callable[[], object]


class Shared(Protocol):
    """What runs tasks: a `ThreadPool`, or an object that uses one."""

    def run(self, tasks: Sequence[Task]) -> None:
        """See `ThreadPool.run`."""


class ThreadPool:
    """Runs tasks on `count` threads, including the caller's."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"threads: {count}")
        self._others = count - 1
        self._pool = ThreadPoolExecutor(self._others, "compute") if self._others else None

    def run(self, tasks: Sequence[Task]) -> None:
        """Runs every task once, on at most as many threads as there are tasks."""
        queue = iter(tasks)  # Its `next` is atomic in the interpreter, so no task is taken twice.
        if self._pool is None or len(tasks) < 2:
            _drain(queue)
            return
        futures = []
        try:
            for _ in range(min(self._others, len(tasks) - 1)):
                futures.append(self._pool.submit(_drain, queue))
            _drain(queue)
        finally:
            for future in futures:
                future.exception()  # waits; `concurrent.futures.wait` takes some 20 microseconds more
        for future in futures:
            future.result()

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _drain(queue: Iterator[Task]) -> None:
    for task in queue:
        task()
