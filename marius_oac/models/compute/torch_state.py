"""torch's threads and random numbers, set for the length of a block: results depend on neither."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within the block torch's own operations on the CPU use `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(source: Sequence[int], device: torch.device) -> Iterator[None]:
    """torch's generators of the CPU and the device, seeded from some numbers; zeros at the end change nothing."""
    seed = int(np.random.SeedSequence(source).generate_state(1, np.uint64)[0])
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):  # else that of the thread's current device would be seeded, and stay so
                torch.cuda.manual_seed(seed)
        yield
