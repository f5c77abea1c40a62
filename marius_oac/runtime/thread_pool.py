"""A pool of threads for the tasks of one stage of a batch.

Guarantees:
- `run` returns when every task has ended, or raises the error of one of them once all threads have stopped.
- Any thread may run any task. Tasks must not depend on that, nor on each other.
- `close` ends the threads; it may be called twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

Task = Callable[[], object]
_Found = TypeVar("_Found")


class Shared(Protocol):
    """What runs tasks: a `ThreadPool`, or an object that uses one."""

    def run(self, tasks: Sequence[Task]) -> None:
        """See `ThreadPool.run`."""


class ThreadPool:
    """Runs tasks on `count` threads, including the caller's."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"threads: {count}")
        self.count, self._others = count, count - 1
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

    def over(self, size: int, least: int, work: Callable[[int, int], _Found]) -> list[_Found]:
        """Calls `work(first, end)` for parts of [0, size): as many as there are threads, but none smaller than `least`
        if there are two. Returns what the calls returned, in the order of the parts."""
        parts = min(self.count, max(size // least, 1))
        if parts == 1:
            return [work(0, size)]
        found: list[_Found | None] = [None] * parts

        def one(part: int) -> None:
            found[part] = work(size * part // parts, size * (part + 1) // parts)

        self.run([partial(one, part) for part in range(parts)])
        return found  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _drain(queue: Iterator[Task]) -> None:
    for task in queue:
        task()


ALONE = ThreadPool(1)
"""The caller's thread and no other."""
