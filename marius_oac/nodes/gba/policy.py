"""Which mode comes next, sync or gba, by what was measured: a state machine without clock, threads or network.

At every decision point it is told how fast the run went since the last one, in which mode, and how long each trainer
took for its batches. What a mode should do without any cost of its own follows from these times alone: with x_i the
seconds per example of trainer i, of N,

    sync   N / E[max x_i]       every part of a batch waits for the slowest one; the expectation takes times as
                                independent that are near each other, so that jitter costs what it costs, which no
                                mean shows, and trainers that grow slow together are taken to be slow together
    gba    sum of 1 / E[x_i]    everybody goes at his own pace

What a mode does in truth is less: rows travel, trainers come to rest. That is learned, for the mode that runs, as the
ratio of what was measured to that. So that it is known of both, a run begins with a trial: two stretches of sync, two
of gba; the first of each, in which caches fill and code is compiled, teaches nothing.

The *gain* of gba is what is expected of it by what is expected of sync, less 1. It should be used where it is more
than `margin`, and left where it is less than that by 0.03. A switch follows when that by which it is more, or less, has
added up to 0.2, in logarithms and without falling to zero meanwhile, at `patience` decision points in a row or
more. So a large gain is taken at once, a small one when it lasts, and noise between the two bounds changes nothing
(Page, 1954: CUSUM). Where nothing but patience is lacking the next decision point should come soon: slow trainers cost
most until the switch. Of what a mode costs so short a stretch says little, and teaches nothing.
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
_BETWEEN = 0.03  # of the bounds, in logarithms
_PIECES = 8  # of a stretch, within which times are near each other
_REST = 50  # times what coming to rest takes
_NEWEST = 0.5  # what the newest measurement counts


@dataclass(frozen=True)
class Measured:
    """What was measured between two decision points.

    Attributes:
        rate: global examples per second.
        times: of each trainer, seconds per example of its batches in their order, float64 [batches]; what it waited for
            others is no part of them. None of a trainer that has computed nothing.
    """

    rate: float
    times: Sequence[np.ndarray]


@dataclass(frozen=True)
class Decision:
    """What comes next, and why.

    Attributes:
        mode: of the next stretch.
        switches: whether it is another one than that of the last.
        expected: global examples per second of each mode; empty while that is not known.
        gain: what gba is expected to gain over sync: 0.1 is 10 %.
        trial: it belongs to the trial, or ends it.
        hurry: the next decision point should come soon.
        reason: in words.
    """

    mode: str
    switches: bool
    expected: dict[str, float]
    gain: float
    reason: str
    trial: bool = False
    hurry: bool = False

    def metrics(self) -> dict[str, Any]:
        """As a line of metrics.jsonl holds them."""
        known = {f"expected.{mode}": rate for mode, rate in self.expected.items()}
        known |= {"gain": self.gain} if known else {}
        return {"mode": self.mode, "switches": self.switches} | known | {"reason": self.reason}


class Policy:
    """Args:
    margin: what gba must gain over sync to be preferred.
    patience: decision points in a row that must speak for a switch.

    Attributes:
        mode: of the next stretch; at first sync.
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
        """To be told after each stretch, which was trained in `mode`; who is told the same decides alike."""
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
        """Global batches up to the next decision point: `every`, or more in gba, where all come to rest when the
        slowest trainer has done its batch: so many that this is a fiftieth of their time, or four times `every`.
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
    """Examples per second of each mode that costs nothing itself, of trainers whose seconds per example are these."""
    pieces = min(_PIECES, *(each.size for each in times))
    cut = zip(*(np.array_split(each, pieces) for each in times), strict=True)
    slowest = sum(expected_slowest(near) for near in cut) / pieces
    return {"sync": len(times) / slowest, "gba": sum(1 / float(each.mean()) for each in times)}


def expected_slowest(samples: Sequence[np.ndarray]) -> float:
    """The expected maximum of one draw from each of some samples, float64 [n_i] and not negative, independently."""
    values = np.unique(np.concatenate(samples))
    below = np.ones(values.size)
    for each in samples:
        below *= np.searchsorted(np.sort(each), values, side="right") / each.size
    return float(values[0] + ((1 - below[:-1]) * np.diff(values)).sum())
