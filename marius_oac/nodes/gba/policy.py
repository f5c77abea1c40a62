"""Decides from measurements which mode runs next, sync or gba: a state machine without clock, threads or network.

Each decision uses how fast the run was since the last one, in which mode, and how long each trainer took for its
batches. The ideal rate of a mode, without any overhead, follows from these times alone. With x_i the seconds per
example of trainer i, of N:

    sync   N / E[max x_i]       every part of a batch waits for the slowest trainer
    gba    sum of 1 / E[x_i]    every trainer works at its own speed

The expectation of the maximum treats times that were measured close to each other as independent. So jitter costs what
it costs, which no mean shows, and trainers that become slow together are taken to be slow together.

The real rate of a mode is lower: rows travel, and trainers pause. The policy learns the ratio of the measured rate to
the ideal one for the mode that runs. To know it of both modes, a run begins with a trial: two intervals of sync, then
two of gba. The first interval of each is not used, since caches fill and code is compiled in it.

The *gain* of gba is its expected rate divided by that of sync, less 1. gba should run where the gain is above `margin`,
and sync where it is below that by more than 0.03. The policy switches when the excess over that bound, in logarithms,
has added up to 0.2 without falling to zero meanwhile, at `patience` decision points in a row or more (Page, 1954:
CUSUM). So it acts on a large gain at once and on a small one when it lasts, and noise between the two bounds changes
nothing. Where only patience is lacking the next decision should come soon, since slow trainers cost most until the
switch. So short an interval says little of what a mode costs, and its ratio is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MODES = ("sync", "gba")
TRIAL = ("sync", "sync", "gba", "gba")
EVIDENCE = 0.2
_BETWEEN = 0.03  # between the bounds, in logarithms
_PIECES = 8  # of an interval: times within a piece were measured close to each other
_REST = 50  # an interval of gba takes this many times as long as the pause that ends it
_NEWEST = 0.5  # weight of the newest ratio in the moving average


@dataclass(frozen=True)
class Measured:
    """What was measured between two decision points.

    Attributes:
        rate: global examples per second.
        times: of each trainer, seconds per example of its batches in their order, float64 [batches], without the time
            that it waited for others; empty for a trainer that has computed nothing.
    """

    rate: float
    times: Sequence[np.ndarray]


@dataclass(frozen=True)
class Decision:
    """Which mode runs next, and why.

    Attributes:
        mode: of the next interval.
        switches: whether it differs from the last interval's.
        expected: global examples per second of each mode; empty while they are not known.
        gain: what gba is expected to gain over sync: 0.1 is 10 %.
        reason: in words.
        trial: whether it belongs to the trial, or ends it.
        hurry: whether the next decision should come soon.
    """

    mode: str
    switches: bool
    expected: dict[str, float]
    gain: float
    reason: str
    trial: bool = False
    hurry: bool = False

    def metrics(self) -> dict[str, Any]:
        """Returns the decision's fields of a line of metrics.jsonl."""
        known = {f"expected.{mode}": rate for mode, rate in self.expected.items()}
        known |= {"gain": self.gain} if known else {}
        return {"mode": self.mode, "switches": self.switches} | known | {"reason": self.reason}


class Policy:
    """Chooses between sync and gba.

    Args:
        margin: what gba must gain over sync to be preferred.
        patience: decisions in a row that must favour a switch.

    Attributes:
        mode: of the next interval; at first sync.
    """

    def __init__(self, margin: float, patience: int):
        self.margin, self.patience = margin, patience
        self.mode = TRIAL[0]
        self._tried = 0
        self._ratios: dict[str, float] = {}
        self._times: dict[int, np.ndarray] = {}
        self._points, self._score = 0, 0.0
        self._hurried = False

    def decide(self, measured: Measured) -> Decision:
        """Takes the measurements of an interval that was trained in `mode`, and returns which mode comes next.

        Policies that are given the same measurements decide alike.
        """
        self._times |= {trainer: each for trainer, each in enumerate(measured.times) if each.size}
        if not self._times or not measured.rate > 0:
            return Decision(self.mode, False, {}, 0.0, "nothing was measured")
        ideal = ideal_rates(list(self._times.values()))
        self._tried += 1
        teaches = not self._hurried if self._tried > len(TRIAL) else self.mode in TRIAL[: self._tried - 1]
        if teaches:
            self._learn(measured.rate / ideal[self.mode])
        if self._tried < len(TRIAL):
            before, self.mode = self.mode, TRIAL[self._tried]
            return Decision(self.mode, self.mode != before, {}, 0.0, "trial: how fast each mode goes", trial=True)
        expected = {mode: ideal[mode] * self._ratios[mode] for mode in MODES}
        gain = expected["gba"] / expected["sync"] - 1
        return self._judge(expected, gain) if self._tried > len(TRIAL) else self._end_trial(expected, gain)

    def interval(self, every: int, global_batch: int, local_batch: int) -> int:
        """Returns the global batches up to the next decision: `every`, or more in gba.

        In gba an interval ends with a pause: all trainers wait until the slowest has done its batch. The interval is so
        long that this is a fiftieth of its time, and at most four times `every`.
        """
        if self.mode == "sync" or self._tried < len(TRIAL):
            return every
        slowest = max(float(each.mean()) for each in self._times.values()) * local_batch
        batches = ideal_rates(list(self._times.values()))["gba"] / global_batch
        return min(4 * every, max(every, math.ceil(_REST * slowest * batches - 1e-6)))

    def _learn(self, ratio: float) -> None:
        before = self._ratios.get(self.mode, ratio)
        self._ratios[self.mode] = before + _NEWEST * (ratio - before)

    def _end_trial(self, expected: dict[str, float], gain: float) -> Decision:
        before, self.mode = self.mode, "gba" if gain > self.margin else "sync"
        return Decision(self.mode, self.mode != before, expected, gain, f"trial: gba gains {gain:+.1%}", trial=True)

    def _judge(self, expected: dict[str, float], gain: float) -> Decision:
        beyond = math.log1p(gain) - math.log1p(self.margin)
        speaks = beyond if self.mode == "sync" else -beyond - _BETWEEN
        self._score = max(0.0, self._score + speaks)
        self._points = self._points + 1 if speaks > 0 else 0
        why = f"gba would gain {gain:+.1%}" if self.mode == "sync" else f"gba gains {gain:+.1%}"
        enough = speaks > 0 and self._score >= EVIDENCE
        self._hurried = enough and self._points < self.patience
        if not enough or self._hurried:
            why += f", {self._points} in a row: not yet" if self._points else ""
            return Decision(self.mode, False, expected, gain, why, hurry=self._hurried)
        self.mode = MODES[1 - MODES.index(self.mode)]
        why += f", {self._points} in a row"
        self._points, self._score = 0, 0.0
        return Decision(self.mode, True, expected, gain, why)


def ideal_rates(times: Sequence[np.ndarray]) -> dict[str, float]:
    """Returns the examples per second of each mode, as if it had no overhead.

    Args:
        times: of each trainer, seconds per example, float64 [batches], none empty.
    """
    pieces = min(_PIECES, *(each.size for each in times))
    cut = zip(*(np.array_split(each, pieces) for each in times), strict=True)
    slowest = sum(expected_slowest(near) for near in cut) / pieces
    return {"sync": len(times) / slowest, "gba": sum(1 / float(each.mean()) for each in times)}


def expected_slowest(samples: Sequence[np.ndarray]) -> float:
    """Returns the expected maximum of independent draws, one from each sample, float64 [n_i], not negative."""
    values = np.unique(np.concatenate(samples))
    below = np.ones(values.size)
    for each in samples:
        below *= np.searchsorted(np.sort(each), values, side="right") / each.size
    return float(values[0] + ((1 - below[:-1]) * np.diff(values)).sum())
