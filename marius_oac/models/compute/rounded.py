"""A `Multiply` whose inputs are rounded to bfloat16, and whose sums are float32, for `compute.precision: bfloat16`."""

from __future__ import annotations

import threading

import numpy as np

from marius_oac.kernels.cpu.bfloat16_gemm import VECTOR
from marius_oac.kernels.cpu.bfloat16_products import multiply_rounded
from marius_oac.models.compute.scratch import Scratch


class ByBfloat16:
    """See `Multiply`. Batches of matrices are float32, and NumPy's: they are too small to be laid out anew.

    The bits of a result depend on the values, not on addresses, strides or the thread. Each thread that calls it has
    memory of its own, as long as both live.
    """

    def __init__(self) -> None:
        self._threads = threading.local()

    def __call__(self, left: np.ndarray, right: np.ndarray, into: np.ndarray) -> None:
        if left.ndim > 2:
            np.matmul(left, right, out=into)
            return
        (rows, inner), columns = left.shape, right.shape[1]
        if not (rows and inner and columns):
            into[:] = 0
            return
        pairs, width = -(-inner // 2), -(-columns // VECTOR) * VECTOR
        spaces = [self._take(name, pairs * n) for name, n in (("left", rows), ("right", width), ("own", VECTOR))]
        place = into.ctypes.data, into.strides[0] // 4
        multiply_rounded((rows, columns, inner), _placed(left), _placed(right), place, *spaces)

    def _take(self, name: str, size: int) -> np.ndarray:
        if not hasattr(self._threads, "scratch"):
            self._threads.scratch = Scratch()
        return self._threads.scratch.take(name, size, dtype=np.uint32)


def _placed(matrix: np.ndarray) -> tuple[int, int, bool]:
    """Address, floats from a row in memory to the next, and whether those rows are the matrix's columns."""
    turned = matrix.strides[1] != matrix.itemsize
    return matrix.ctypes.data, matrix.strides[0 if not turned else 1] // matrix.itemsize, turned
