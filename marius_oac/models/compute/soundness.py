"""Checks whether the numbers that a batch computed are still usable. If not, training stops at that batch.

A NaN or infinite number never becomes finite again. A value of an embedding or a weight of a network above
`LARGEST_VALUE` is finite but useless: float32 numbers are 1/8 apart there, so usual updates are lost in rounding, and
products of a few such numbers overflow. Usual updates don't lead there: it takes a million steps of size 1 in the same
direction. An optimizer's state may be any finite number, since sums of squares grow large without a fault.
"""

from __future__ import annotations

import math
from functools import cache, reduce
from typing import Any

import numpy as np
import torch

from marius_oac.kernels.cpu.products import largest_bits
from marius_oac.kernels.gpu import choice

LARGEST_VALUE = 2.0**20

_MOST = float(np.finfo(np.float32).max)
_INFINITE = int(np.float32(np.inf).view(np.int32))


@cache
def _bits(number: float) -> np.int32:
    """Those of a float32."""
    return np.float32(number).view(np.int32)


def is_sound(rows: Any, dimension: int, largest: float = LARGEST_VALUE) -> Any:
    """Whether the first `dimension` floats of each row have absolute values up to `largest`, and all others are finite.

    Args:
        rows: float32 [n, width], an array in C order or a tensor.
        largest: infinity allows all finite values.

    Returns:
        a bool; for a tensor a 0-d tensor on its device, so that nothing waits for the device.
    """
    largest = min(largest, _MOST)
    if isinstance(rows, torch.Tensor):
        if choice.chosen(rows.device) and rows.dtype == torch.float32:
            return _is_sound_fused(rows, dimension, largest)
        parts = [(rows[:, :dimension], largest), (rows[:, dimension:], _MOST)]
        sound = [torch.linalg.vector_norm(part, math.inf) <= most for part, most in parts if part.numel()]
        return reduce(torch.logical_and, sound) if sound else torch.ones((), dtype=torch.bool, device=rows.device)
    bits, most = rows.view(np.int32), _bits(largest)
    # One long row takes a fifth of the time of many short ones, and a state beyond a value's bound is rare.
    if bits.size == 0 or largest_bits(bits.reshape(1, -1), bits.size)[0] <= most:
        return True
    value, other = largest_bits(bits, dimension)
    return value <= most and other < _INFINITE


def _is_sound_fused(rows: torch.Tensor, dimension: int, largest: float) -> torch.Tensor:
    from marius_oac.kernels.gpu.jit import launch
    from marius_oac.kernels.gpu.rows import look

    (count, width), sound = rows.shape, torch.ones((), dtype=torch.bool, device=rows.device)
    tile = {"ROWS": 32, "COLUMNS": 128}
    launch(look, (-(-count // tile["ROWS"]),), rows, rows.stride(0), count, dimension, width, sound.view(torch.uint8),
           largest, _MOST, **tile)  # fmt: skip
    return sound
