"""Memory that is reused from batch to batch."""

from __future__ import annotations

import math

import numpy as np

from marius_oac.runtime.aligned import ALIGNMENT


class Scratch:
    """Named arrays that only grow and are not cleared. One thread at a time may call `take`."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def take(self, name: str, *shape: int, dtype: type = np.float32) -> np.ndarray:
        """An array of this shape and dtype, C order, aligned to 64 bytes, valid until `name` is taken again."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            raw = np.zeros(size + ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            self._buffers[name] = buffer = raw[start : start + size]
        return buffer[:size].view(dtype).reshape(shape)
