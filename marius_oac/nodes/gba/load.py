"""Slow trainers on demand: which of them takes how many times as long for a batch, and when. For tests and benchmarks.

    LoadProfile   the slowdowns of one trainer
    TimedStep     a step that takes as long as the profile says, and keeps how long its batches took

Guarantees:
- A slowed batch has the bits of one that is not: its thread waits when the batch is computed, nothing else.
- What a trainer waits for others in the middle of a batch is no time of its own, and is not made longer. (Two slow
  trainers would else wait for each other's waits, longer with each batch.)
- A wait ends when `stopped` is set. The batch then goes on as any other does, and ends as they do.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from marius_oac.types import Step

_KEPT = 4096


@dataclass(frozen=True)
class Slowdown:
    """Batches begun in [begin, end) take `factor` times as long, and `least` at full speed if they would take less; in
    seconds, again after each `period`."""

    factor: float
    begin: float = 0.0
    end: float = math.inf
    period: float = math.inf
    least: float = 0.0

    def at(self, now: float) -> bool:
        """Whether it is on."""
        return self.begin <= now % self.period < self.end


@dataclass(frozen=True)
class LoadProfile:
    """The slowdowns of one trainer; factors that meet are multiplied."""

    slowdowns: tuple[Slowdown, ...] = ()

    def seconds(self, own: float, now: float) -> float:
        """What a batch takes that begins now, in seconds since training began, and took `own` seconds."""
        found = [each for each in self.slowdowns if each.at(now)]
        return max([own, *(each.least for each in found)]) * math.prod(each.factor for each in found)


class TimedStep:
    """`marius_oac.types.Step`, and whatever else the step does, for the thread that computes.

    Args:
        step: the trainer's.
        waited: seconds that the calling thread has waited for other trainers so far.
        stopped: set when the run can't go on.
        profile: of this trainer; its seconds count from the first batch of this process on.
        clock: seconds.

    Attributes:
        slowed: batches that took longer for the profile's sake, and `added`, by how many seconds in all.
    """

    def __init__(
        self,
        step: Step,
        waited: Callable[[], float],
        stopped: threading.Event,
        profile: LoadProfile = LoadProfile(),
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._step, self._waited, self._stopped = step, waited, stopped
        self._profile, self._clock = profile, clock
        self._began: float | None = None
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self.slowed, self.added = 0, 0.0

    def compute(self, rows: Sequence[Any], arrays: Mapping[str, Any], timestamp: int) -> Any:
        """See `Step.compute`."""
        begin, waited = self._clock(), self._waited()
        self._began = begin if self._began is None else self._began
        loss = self._step.compute(rows, arrays, timestamp)
        if isinstance(loss, torch.Tensor) and loss.is_cuda:
            torch.cuda.current_stream(loss.device).synchronize()  # else this would be the time of launching alone
        own = self._clock() - begin - (self._waited() - waited)
        taken = self._profile.seconds(own, begin - self._began)
        if taken > own:
            self._linger(taken - own)
        share = float(arrays["share"].item())
        if share:
            self._times.append((share, taken))
        return loss

    def take(self) -> list[tuple[float, float]]:
        """Of each batch since the last call, or the last thousands: its part of a global batch, and its seconds."""
        taken = list(self._times)
        self._times.clear()
        return taken

    def _linger(self, seconds: float) -> None:
        self.slowed += 1
        self.added += seconds
        self._stopped.wait(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
