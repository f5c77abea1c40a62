"""Values of rows on their way from a shard to a trainer: float32, or bfloat16 if the store has them so.

A stored bfloat16 value is sent as its two bytes and widened again by the trainer. Nothing is rounded on the way, so the
bits are those of a message of float32. Sums of rows have more bits than the rows, and are always float32.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.bfloat16 import bfloat16_bits
from marius_oac.nodes.transport.contract import Buffer
from marius_oac.nodes.transport.messages import array


def narrowed(values: np.ndarray) -> np.ndarray:
    """Returns stored bfloat16 values, float32 [n, D] as a store reads them, in the two bytes that each is stored in."""
    return bfloat16_bits(values)


def values_in(frame: Buffer, count: int, dimension: int) -> np.ndarray:
    """Returns the values, float32 [count, dimension], of a frame; its size tells bfloat16 from float32.

    Raises:
        Malformed: the frame has neither size.
    """
    if memoryview(frame).nbytes != 2 * count * dimension:
        return array(frame, np.float32, count, dimension)
    return (array(frame, np.uint16, count, dimension).astype(np.uint32) << np.uint32(16)).view(np.float32)
