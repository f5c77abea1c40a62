"""Metrics of examples that are predicted just before they are trained on, batch by batch, in bounded memory.

Scores are rounded to 1 of 16,384 steps within each power of two, below one half those of p, above those of 1 - p; AUC
counts two examples of one step as a tie. All else is exact: losses and probabilities are summed in multiples of 2**-40.
So the metrics depend only on the set of examples, and those of several processes can be added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marius_oac.errors import MariusOacError
from marius_oac.evaluation.binary_metrics import LEAST_PROBABILITY, doubled_wins, in_units, metrics_of_sums

_STEP_BITS = 9  # of a float32's 23, which are left out
_FIRST = int(np.float32(LEAST_PROBABILITY).view(np.uint32)) >> _STEP_BITS
_HALF = (int(np.float32(0.5).view(np.uint32)) >> _STEP_BITS) - _FIRST


class ProgressiveMetrics:
    """Counts examples by score and label. One thread at a time."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, 2 * _HALF + 1), np.int64)
        """Of negative and positive examples by the step of their score."""
        self._loss = self._prediction = 0

    def add(self, labels: np.ndarray, probabilities: np.ndarray) -> None:
        """Adds n examples.

        Args:
            labels: float32 [n], each 0 or 1.
            probabilities: float32 [n] in [0, 1].

        Raises:
            MariusOacError: a probability is NaN.
        """
        if np.isnan(probabilities).any():
            raise MariusOacError("a probability is NaN")
        positive, low = labels == 1, probabilities < 0.5
        nearest = np.where(low, probabilities, 1 - probabilities).clip(np.float32(LEAST_PROBABILITY))
        steps = (nearest.view(np.uint32) >> _STEP_BITS).astype(np.int64) - _FIRST
        steps = np.where(low, steps, 2 * _HALF - steps)
        for counts, those in zip(self._counts, (~positive, positive), strict=True):
            np.add.at(counts, steps[those], 1)
        values = probabilities.astype(np.float64)
        clipped = values.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        self._loss += _sum(in_units(-np.log(np.where(positive, clipped, 1 - clipped))))
        self._prediction += _sum(in_units(values))

    def taken(self) -> list[Any]:
        """What has been added since the last call, as plain values for `merged`."""
        steps = np.flatnonzero(self._counts.any(0))
        found = [steps.tolist(), *self._counts[:, steps].tolist(), self._loss, self._prediction]
        self._counts[:], self._loss, self._prediction = 0, 0, 0
        return found


def merged(parts: Sequence[list[Any]]) -> dict[str, float]:
    """The metrics of what several processes have `taken`; see `ClickMetrics.result`. Empty without any example."""
    counts = np.zeros((2, 2 * _HALF + 1), np.int64)
    loss = prediction = 0
    for steps, negatives, positives, its_loss, its_prediction in parts:
        counts[:, np.array(steps, np.int64)] += np.array([negatives, positives], np.int64).reshape(2, -1)
        loss, prediction = loss + its_loss, prediction + its_prediction
    if not counts.any():
        return {}
    negatives, positives = counts
    wins = doubled_wins(positives, negatives)
    return metrics_of_sums(wins, int(positives.sum()), int(negatives.sum()), loss, prediction)


def _sum(units: np.ndarray) -> int:
    """The exact sum of int64 [n], which may be beyond 64 bits."""
    return (int((units >> 20).sum()) << 20) + int((units & (1 << 20) - 1).sum())
