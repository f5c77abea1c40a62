"""Compiled operations on rows that travel: copied by index, gradients added up by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.data.batches import relabel
from marius_oac.data.compiled import compiled


def spread(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`values[index]`: float32 [n, D] of [m, D] and int64 [n]."""
    out = np.empty((index.size, values.shape[1]), np.float32)
    _spread(values, index, out)
    return out


@compiled
def _spread(values, index, out):
    for i in range(index.size):
        row = index[i]
        for j in range(values.shape[1]):
            out[i, j] = values[row, j]


def by_row(gradients: np.ndarray, index: np.ndarray, count: int) -> np.ndarray:
    """float32 [count, D]: the sum, in their order, of the gradients [n, D] of each row; every row has one."""
    total, begun = np.empty((count, gradients.shape[1]), np.float32), np.zeros(count, np.bool_)
    _add(index, gradients, np.float32(1), begun, total)
    return total


def scatter(values: np.ndarray, places: np.ndarray, into: np.ndarray) -> None:
    """`into[places[i]] = values[i]`; both float32 [., D]."""
    _scatter(values, places, into)


@compiled
def _scatter(values, places, into):
    for i in range(places.size):
        place = places[i]
        for j in range(values.shape[1]):
            into[place, j] = values[i, j]


def added_up(
    rows: Sequence[np.ndarray], gradients: Sequence[np.ndarray], shares: Sequence[float], bound: int
) -> tuple[np.ndarray, np.ndarray]:
    """The union of some sorted unique rows, and the sums of share * gradient of those who have them, in their order.

    Args:
        rows: int64 [n_r], ascending. gradients: float32 [n_r, D]. shares: of each, 0 to 1.
        bound: rows are below it.
    """
    if len(rows) == 1 and shares[0] == 1.0:
        return rows[0], gradients[0]
    union = np.concatenate(rows)
    places = np.split(union, np.cumsum([each.size for each in rows])[:-1])
    union = relabel(union, bound).copy()
    total, begun = np.empty((union.size, gradients[0].shape[1]), np.float32), np.zeros(union.size, np.bool_)
    for index, gradient, share in zip(places, gradients, shares, strict=True):
        _add(index, gradient, np.float32(share), begun, total)
    return union, total


@compiled
def _add(index, gradients, share, begun, total):
    for i in range(index.size):
        row = index[i]
        if begun[row]:
            for j in range(total.shape[1]):
                total[row, j] += share * gradients[i, j]
        else:  # assigned, so that a lone -0.0 stays one
            begun[row] = True
            for j in range(total.shape[1]):
                total[row, j] = share * gradients[i, j]
