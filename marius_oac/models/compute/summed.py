"""Gradients of rows that are not summed up yet, and the sum with the row optimizer's update, in the GPU's kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marius_oac.batches import SumOrder
from marius_oac.kernels.cpu.row_updates import Rule

BLOCK = 128
"""Places that one program sums up, in rows with many (`kernels.gpu.segments`)."""
_TILE_FLOATS = 1024
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Parts:
    """Gradients of the places where rows occur.

    Attributes:
        values: float32 [P, D].
        order: where each of the n rows occurs.
    """

    values: Tensor
    order: SumOrder[Tensor]

    @property
    def count(self) -> int:
        """n."""
        return len(self.order.first) - 1


def sorted_there(keys: Tensor, count: int) -> SumOrder[Tensor]:
    """The places of each of `count` keys in `keys`, int64 [P], sorted on their device."""
    values, places = torch.sort(keys, stable=True)
    return SumOrder(places, torch.searchsorted(values, torch.arange(count + 1, device=keys.device)))


def power(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least `count` and `least`: an edge of a tile."""
    return max(least, 1 << max(0, count - 1).bit_length())


def update_summed(
    rows: Tensor,
    parts: Parts,
    rule: Rule,
    picks: Tensor | None = None,
    told: Tensor | None = None,
    largest: float = math.inf,
    decay: float = 0.0,
) -> None:
    """Sums up the gradients of each row, and updates it in place.

    Args:
        rows: float32 [., D + state]; contiguous columns.
        rule: of the update.
        picks: int64 [n], the rows' places in `rows`; None: the first n.
        told: float32, whose first number becomes NaN if a new row is not sound (`soundness`), with values up to
            `largest`; None: it is not asked.
        decay: times a row's value is added to its gradient.
    """
    from marius_oac.kernels.gpu import segments as kernels
    from marius_oac.kernels.gpu.jit import launch

    (num_places, dimension), count, order = parts.values.shape, parts.count, parts.order
    columns = power(dimension, 16)
    shape = {"DIMENSION": dimension, "COLUMNS": columns}
    sums = parts.values.new_empty((num_places // BLOCK, dimension))
    where = (parts.values, order.places, order.first, sums)
    launch(kernels.block_sums, (len(sums),), *where, count, TILE=max(1, 4 * _TILE_FLOATS // columns), **shape)
    floats = (float(each) for each in rule[1:])
    launch(
        kernels.update_rows, (count,), *where, rows, rows.stride(0), order.first if picks is None else picks,
        rows if told is None else told, *floats, min(largest, _LARGEST), decay, RULE=rule.code,
        PICKED=picks is not None, TOLD=told is not None, TILE=max(1, _TILE_FLOATS // columns), warps=1, **shape,
    )  # fmt: skip
