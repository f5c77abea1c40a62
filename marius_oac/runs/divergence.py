"""Detects a loss that has grown out of proportion. Single batches are checked by `models/compute/soundness.py`."""

from __future__ import annotations

from collections.abc import Sequence

LARGEST_GROWTH = 1e6
"""The largest loss of the last batches, relative to that of the first ones, or to 1 if that is more."""


def first_loss(known: float | None, heard: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Returns a run's initial loss: `known`, or the largest of the processes' first batches."""
    return max((begun for begun, _ in heard if begun is not None), default=None) if known is None else known


def grown_loss(first: float | None, heard: Sequence[tuple[float | None, float | None]]) -> str | None:
    """Returns what is wrong with the loss of the last batches of a segment; None: nothing.

    Medians, as one batch may hold an outlier. A model that predicts a constant has a loss near 1, and so has an
    untrained one; a model of the user's, or columns that are not scaled, may begin with more. Steps that are too large
    may well make it ten thousand times that for a while, and training recovers as the optimizer's steps shrink; from a
    million on it is the steps' noise.

    Args:
        first: median loss of the run's first few batches; None: unknown.
        heard: of each process the median loss of the segment's first and last few batches; None: it had none.
    """
    last = max((ended for _, ended in heard if ended is not None), default=0.0)
    if first is None or last <= LARGEST_GROWTH * max(1.0, first):
        return None
    return f"the loss is {last:.3g}, and began with {first:.3g}"
