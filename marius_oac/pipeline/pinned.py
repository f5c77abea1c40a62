"""Pinned host memory, which a GPU copies to and from asynchronously.

torch's own pinned tensors come from a cache that rounds each one up to a power of two bytes and never frees them.
Staging buffers are few, large, and live as long as a run, so they are pinned in place and released at its end.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence

import torch

from marius_oac.errors import InputError
from marius_oac.storage.reserved import reserve


class PinnedMemory:
    """Allocates tensors in pinned memory; may be used by any thread.

    The memory is released by `close`, or when this object is garbage. No copy may be in progress then.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._pinned: list[mmap.mmap] = []
        self.close: Callable[[], object] = weakref.finalize(self, _unpin, device, self._pinned)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns a zeroed tensor in pinned memory.

        Raises:
            InputError: the system pins no more memory.
        """
        count = math.prod(shape)
        memory = reserve(count * dtype.itemsize or 1)
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        with self._lock, torch.cuda.device(self._device):
            status = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), len(memory), 0))
            if status:
                what = f"CUDA can't pin {len(memory):,} bytes more of host memory (CUDA error {status})"
                raise InputError(f"{what}: have fewer batches in flight, or smaller ones", "pipeline.in_flight")
            self._pinned.append(memory)
        return tensor[: count * dtype.itemsize].view(dtype).view(*shape)


def _unpin(device: torch.device, pinned: list[mmap.mmap]) -> None:
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # after an error copies may be in progress
        while pinned:
            memory = pinned.pop()
            torch.cuda.cudart().cudaHostUnregister(torch.frombuffer(memory, dtype=torch.uint8).data_ptr())
