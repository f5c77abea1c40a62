"""Are the numbers that a batch has made of any use? What is not stops training, by the batch that made it.

A number that is NaN or infinite never becomes another one again. A value of an embedding beyond `LARGEST_VALUE` is
finite, and of no more use, and so is a weight of a network's: float32 numbers lie 1/8 apart there, so that updates of a
usual size are lost in it, and products of a few of them overflow. Steps of a usual size never lead there: it would take
a million of size 1, all in one direction. An optimizer's state may be anything finite: sums of squares grow large by
themselves.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import torch

from marius_oac.kernels.cpu.float_jit import compiled

LARGEST_VALUE = 2.0**20

_INFINITE = int(np.float32(np.inf).view(np.int32))


def is_sound(rows: Any, dimension: int, largest: float = LARGEST_VALUE) -> Any:
    """Whether the first `dimension` floats of each row are at most `largest`, up or down, and all others finite.

    Args:
        rows: float32 [n, width], an array in C order or a tensor.
        largest: infinity allows everything finite.
    Returns:
        A bool; of a tensor on its device a 0-d one there, so that nobody waits for it.
    """
    largest = min(largest, float(np.finfo(np.float32).max))
    if isinstance(rows, torch.Tensor):
        parts = [(rows[:, :dimension], largest), (rows[:, dimension:], float(np.finfo(np.float32).max))]
        sound = [torch.linalg.vector_norm(part, math.inf) <= most for part, most in parts if part.numel()]
        return reduce(torch.logical_and, sound) if sound else torch.ones((), dtype=torch.bool, device=rows.device)
    value, other = _largest_bits(rows.view(np.int32), dimension)
    return value <= np.float32(largest).view(np.int32) and other < _INFINITE


@compiled
def _largest_bits(rows, dimension):
    """Of the absolute values: their bits ascend as they do, and those of infinity and NaN come last."""
    value = other = np.int32(0)
    sign = np.int32(0x7FFFFFFF)
    for i in range(rows.shape[0]):
        for j in range(dimension):
            value = max(value, rows[i, j] & sign)
        for j in range(dimension, rows.shape[1]):
            other = max(other, rows[i, j] & sign)
    return value, other
