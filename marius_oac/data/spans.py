"""Runs of consecutive ids, end to end: where a batch's edges and negatives may come from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_oac.data.compiled import compiled


class Spans(NamedTuple):
    """Span k holds ids `first[k]`, `first[k] + 1`, ...; spans 0 to k together hold `ends[k]` ids. Both int64 [n]."""

    first: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, first: np.ndarray, lengths: np.ndarray) -> Spans:
        """From where each span begins and how long it is, int64 [n]; empty spans are left out."""
        kept = lengths > 0
        return cls(first[kept], np.cumsum(lengths[kept]))

    @classmethod
    def up_to(cls, count: int) -> Spans:
        """The one span 0 to count - 1."""
        return cls(np.zeros(1, dtype=np.int64), np.array([count], dtype=np.int64))

    def count(self) -> int:
        """Ids in all."""
        return int(self.ends[-1]) if len(self.ends) else 0


@compiled
def located(spans, position):
    """The id at `position`, 0 <= position < spans.ends[-1]."""
    low, high = 0, spans.ends.size - 1
    while low < high:
        middle = (low + high) >> 1
        if spans.ends[middle] > position:
            high = middle
        else:
            low = middle + 1
    return spans.first[low] + position - (spans.ends[low - 1] if low else 0)
