"""A pool of threads for the tasks of one stage of a batch; and threads and random numbers, set for a block, so that
results don't depend on the state of the process.

Guarantees of `ThreadPool`:
- `run` returns when every task has ended, or raises the error of one of them once all threads have stopped.
- Any thread may run any task. Tasks must not depend on that, nor on each other.
- `close` ends the threads; it may be called twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import Protocol

import numpy as np
import torch

from marius_oac.runtime import blas

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


CPU = torch.device("cpu")
_GENERATORS = threading.RLock()


@contextmanager
def compute_threads(device: torch.device, count: int) -> Iterator[ThreadPool]:
    """A pool of `count` threads if the device is the CPU, else of one.

    On the CPU NumPy's products run on one thread each within the block, in the whole process.
    """
    on_cpu = device.type == "cpu"
    with (
        closing(ThreadPool(count if on_cpu else 1)) as thread_pool,
        blas.one_thread_per_product() if on_cpu else nullcontext(),
    ):
        yield thread_pool


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within the block torch's operations on the CPU use `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(source: Sequence[int], device: torch.device) -> Iterator[None]:
    """As `seeded_by`, with a seed drawn from `source`, whose trailing zeros don't matter."""
    with seeded_by(int(np.random.SeedSequence(source).generate_state(1, np.uint64)[0]), device):
        yield


@contextmanager
def seeded_by(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Seeds torch's generators of the CPU and the device within the block, and restores them afterwards.

    The process has but one of each, so one thread at a time is in such a block.
    """
    devices = [device] if device.type == "cuda" else []
    with _GENERATORS, torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed all devices' generators too
        if devices:
            with torch.cuda.device(device):  # else the current device's generator would be seeded for good
                torch.cuda.manual_seed(seed)
        yield
