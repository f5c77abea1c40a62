"""Compiled operations on rows sent between nodes: copied by index, summed, gradients added up by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.relabel import relabel


def spread(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`values[index]`: float32 [n, D] of [m, D] and int64 [n]."""
    out = np.empty((index.size, values.shape[1]), np.float32)
    spread_into(values, index, out)
    return out


@compiled
def spread_into(values, index, out):
    """`out[i] = values[index[i]]`; both float32 [., D]."""
    for i in range(index.size):
        row = index[i]
        for j in range(values.shape[1]):
            out[i, j] = values[row, j]


@compiled
def sum_into(values, index, offsets, out):
    """`out[i]` is the sum of `values[index[offsets[i]:offsets[i + 1]]]`, at least one, in their order."""
    for i in range(offsets.size - 1):
        first = index[offsets[i]]
        for j in range(values.shape[1]):
            out[i, j] = values[first, j]
        for at in range(offsets[i] + 1, offsets[i + 1]):
            row = index[at]
            for j in range(values.shape[1]):
                out[i, j] += values[row, j]


@compiled
def any_of(marked, index, offsets, out):
    """`out[i]`: whether any of `marked[index[offsets[i]:offsets[i + 1]]]` is."""
    for i in range(offsets.size - 1):
        out[i] = False
        for at in range(offsets[i], offsets[i + 1]):
            if marked[index[at]]:
                out[i] = True


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
        add(index, gradient, np.float32(share), begun, total)
    return union, total


@compiled
def add(index, gradients, share, begun, total):
    """Adds `share * gradients[i]` to `total[index[i]]`; the first one of a row assigns it and marks it in `begun`."""
    for i in range(index.size):
        row = index[i]
        if begun[row]:
            for j in range(total.shape[1]):
                total[row, j] += share * gradients[i, j]
        else:  # assigned, so that a lone -0.0 stays one
            begun[row] = True
            for j in range(total.shape[1]):
                total[row, j] = share * gradients[i, j]


@compiled
def add_sums(index, offsets, gradients, begun, total):
    """Adds `gradients[i]` to each of `total[index[offsets[i]:offsets[i + 1]]]`, as `add` does."""
    for i in range(offsets.size - 1):
        for at in range(offsets[i], offsets[i + 1]):
            row = index[at]
            if begun[row]:
                for j in range(total.shape[1]):
                    total[row, j] += gradients[i, j]
            else:
                begun[row] = True
                for j in range(total.shape[1]):
                    total[row, j] = gradients[i, j]
