"""Threads and random numbers, set for a block, so that results don't depend on the state of the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext

import numpy as np
import torch

from marius_oac.runtime import blas
from marius_oac.runtime.thread_pool import ThreadPool

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
