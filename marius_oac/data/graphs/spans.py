"""Spans: runs of consecutive ids, from which a batch's edges and negatives are drawn.

Spans are an array int64 [2, n]: span k holds the ids `spans[0, k]`, `spans[0, k] + 1`, ..., and spans 0 to k together
hold `spans[1, k]` ids. (They are one array because calling a kernel with a tuple of arrays takes much longer.)
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled


def spans_of(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The spans, int64 [2, m], with these first ids and lengths, int64 [n] each. Empty spans are left out."""
    kept = lengths > 0
    return np.stack([first[kept], np.cumsum(lengths[kept])])


def span_up_to(count: int) -> np.ndarray:
    """The single span 0 to count - 1, int64 [2, 1]."""
    return np.array([[0], [count]], dtype=np.int64)


@compiled
def located(spans: np.ndarray, position: int) -> int:
    """The id at `position` of spans int64 [2, n], 0 <= position < spans[1, -1]."""
    low, high = 0, spans.shape[1] - 1
    while low < high:
        middle = (low + high) >> 1
        if spans[1, middle] > position:
            high = middle
        else:
            low = middle + 1
    return spans[0, low] + position - (spans[1, low - 1] if low else 0)
