"""Memory aligned to cache lines: the bits of a matrix product may depend on the alignment of its operands."""

from __future__ import annotations

import math

import numpy as np

ALIGNMENT = 64  # bytes of a cache line and of the widest vector


def aligned_empty(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An uninitialised array whose memory starts at a multiple of 64 bytes; untouched pages take no memory."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).reshape(shape)
