"""Values over the course of a run: batches, seconds and epochs as the horizontal axis, in few enough points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.insight.report.history import LARGEST, History

AXES = {"batches": "batch", "seconds": "seconds of training", "epochs": "epoch"}
"""What may be the horizontal axis, by its name in the page."""
MOST_POINTS = 200
"""Of a curve."""


@dataclass(frozen=True)
class Course:
    """How far a run had come after each of its intervals.

    Attributes:
        batches, seconds: float64 [intervals + 1], beginning with 0.
        ends: batches at the end of each epoch, float64 [epochs + 1], beginning with 0.
    """

    batches: np.ndarray
    seconds: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, run: History) -> Course:
        """The course of a run."""
        batches = np.array([0.0, *(line.batch + 1.0 for line in run.intervals)])
        seconds = np.cumsum([0.0, *(line.seconds for line in run.intervals)])
        ends = [0.0, *(each.batch + 1.0 for each in run.epochs)]
        if len(ends) > 1 and batches[-1] > ends[-1]:  # an epoch that has not ended, as long as the last one that has
            ends.append(max(2 * ends[-1] - ends[-2], batches[-1]))
        return cls(batches, seconds, np.array(ends))

    def at(self, axis: str, batches: np.ndarray) -> np.ndarray | None:
        """Where on an axis a run was after so many batches, float64 [n]; None: unknown, as no epoch has ended."""
        if axis == "batches":
            return batches
        if axis == "seconds":
            return np.interp(batches, self.batches, self.seconds)
        return np.interp(batches, self.ends, np.arange(len(self.ends))) if len(self.ends) > 1 else None


@dataclass(frozen=True)
class Curve:
    """Values of one run, float64 [n], each after so many batches, float64 [n]."""

    run: int
    course: Course
    batches: np.ndarray
    values: np.ndarray

    @property
    def is_drawn(self) -> bool:
        """Whether there is more than one value."""
        return len(self.values) > 1


def curve(runs: Sequence[History], run: int, batches: Sequence[float], values: Sequence[float | None]) -> Curve:
    """A curve of values of one of the runs, None where there is none; means of neighbours where there are more than
    `MOST_POINTS`."""
    sound, found = _sound(values)
    places = np.array(batches, np.float64)[sound]
    if len(found) > MOST_POINTS:
        cuts = _cuts(len(found), MOST_POINTS)
        places, found = places[cuts[1:] - 1], _means(found, cuts)
    return Curve(run, Course.of(runs[run]), places, found)


def thinned(values: Sequence[float | None], most: int) -> list[float]:
    """The values that are numbers, or means of neighbours where there are more than `most`."""
    found = _sound(values)[1]
    return (_means(found, _cuts(len(found), most)) if len(found) > most else found).tolist()


def _sound(values: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray]:
    """Where values are numbers that can be drawn, bool [n]; those, float64 [sound]."""
    found = np.array([np.nan if value is None else value for value in values], np.float64)
    sound = np.abs(found) <= LARGEST  # not NaN
    return sound, found[sound]


def _cuts(count: int, most: int) -> np.ndarray:
    return np.linspace(0, count, most + 1).astype(np.int64)


def _means(values: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    return np.add.reduceat(values, cuts[:-1]) / np.diff(cuts)


def binned(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums over at most `most` bins of the intervals.

    Args:
        values: float64 [names, intervals].

    Returns:
        The intervals at which bins begin and end, int64 [bins + 1]; the sums, float64 [names, bins].
    """
    count = values.shape[1]
    cuts = _cuts(count, min(most, count))
    return cuts, np.add.reduceat(values, cuts[:-1], axis=1)
