"""What is done beside products: biases, sums and rectifiers, and the largest value among rows."""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import float_compiled

_ZERO = np.float32(0)


@float_compiled
def add_bias(rows: np.ndarray, bias: np.ndarray) -> None:
    for i in range(rows.shape[0]):
        for j in range(bias.size):
            rows[i, j] += bias[j]


@float_compiled
def add(into: np.ndarray, more: np.ndarray) -> None:
    for i in range(into.size):
        into[i] += more[i]


@float_compiled
def add_up(rows: np.ndarray, total: np.ndarray) -> None:
    total[:] = _ZERO
    for i in range(rows.shape[0]):
        for j in range(total.size):
            total[j] += rows[i, j]


@float_compiled
def rectify(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(x.size):
        y[i] = _ZERO if x[i] < _ZERO else x[i]


@float_compiled
def rectify_back(y: np.ndarray, gradient: np.ndarray, into: np.ndarray) -> None:
    for i in range(y.size):
        passed = gradient[i]  # always loaded, so that the loop has no branch
        into[i] = _ZERO if y[i] <= _ZERO else passed


@float_compiled
def largest_bits(rows: np.ndarray, dimension: int) -> tuple[np.int32, np.int32]:
    """The largest bits of absolute values, of the first `dimension` columns and of the others. Bits of floats are in
    the order of the values, those of infinity and NaN being the largest; rows are int32 [n, width]."""
    value = other = np.int32(0)
    sign = np.int32(0x7FFFFFFF)
    for i in range(rows.shape[0]):
        for j in range(dimension):
            value = max(value, rows[i, j] & sign)
        for j in range(dimension, rows.shape[1]):
            other = max(other, rows[i, j] & sign)
    return value, other
