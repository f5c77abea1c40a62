"""Products of all pairs of a click's fields: what is done beside their sums, in the order of torch's autograd."""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled, float_compiled

_HALF, _TWO = np.float32(0.5), np.float32(2)


@compiled
def put_beside(fields: np.ndarray, numbers: np.ndarray, into: np.ndarray) -> None:
    """Copies fields, float32 [B, W], and numbers, float32 [B, N], into the rows of `into`, float32 [B, W + N]."""
    width = fields.shape[1]
    for i in range(fields.shape[0]):
        into[i, :width] = fields[i]
        into[i, width:] = numbers[i]


@float_compiled
def differentiate(
    fields: np.ndarray, sums: np.ndarray, by_pairs: np.ndarray, by_beside: np.ndarray, into: np.ndarray
) -> None:
    """The gradients by fields, float32 [B, F, D], from those by the pairs' sum, float32 [B], and by the fields beside
    the numbers, float32 [B, F D + N]. `sums` are those of the fields, float32 [B, D]."""
    count, dimension = fields.shape[1], fields.shape[2]
    for i in range(fields.shape[0]):
        gradient = by_pairs[i] * _HALF
        for f in range(count):
            for d in range(dimension):
                given = by_beside[i, f * dimension + d]
                by_square, by_sum = -gradient * (_TWO * fields[i, f, d]), gradient * (_TWO * sums[i, d])
                into[i, f, d] = (given + by_square) + by_sum
