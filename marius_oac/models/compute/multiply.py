"""How a step multiplies matrices: a callable that writes the product of two arrays into a third.

It runs on the thread that calls it, and its bits depend on the values and the layout of its arguments alone if these
are aligned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
"""Called with `left` [M, K], `right` [K, N] and `into` [M, N], or with [B, M, K], [B, K, N] and [B, M, N], all float32.
Each is in C order or the transpose of an array in C order, or some rows or columns of one; `into` is in C order."""


def by_numpy(left: np.ndarray, right: np.ndarray, into: np.ndarray) -> None:
    """A `Multiply` of NumPy's BLAS, on one thread within `runtime.blas.one_thread_per_product`."""
    np.matmul(left, right, out=into)
