"""Slows trainers down on purpose, and times their batches. Loads are for tests and benchmarks.

    slowed        how long a batch takes under loads
    TimedStep     a step that takes as long as its loads say, and keeps how long its batches took

Guarantees:
- A slowed batch gives the same bits: its thread only waits after the batch is computed.
- Time that a trainer waits for others within a batch is not counted as its own, and is not stretched. Otherwise two
  slow trainers would stretch each other's waits, longer with each batch.
- A wait ends when `stopped` is set. The batch then ends as any other does.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from marius_oac.config.modes import LoadConfig
from marius_oac.types import BatchData, Step

_KEPT = 4096


def slowed(loads: Sequence[LoadConfig], own: float, now: float) -> float:
    """Returns the seconds of a batch that begins `now` seconds after training began and took `own` seconds. Where
    loads overlap, their factors are multiplied."""
    found = [each for each in loads if each.begin <= now % (each.period or math.inf) < (each.end or math.inf)]
    return max([own, *(each.seconds for each in found)]) * math.prod(each.factor for each in found)


class TimedStep:
    """Wraps a `marius_oac.types.Step`: times its batches and slows them down. Other attributes are the step's own.

    Args:
        step: the trainer's.
        waited: returns the seconds that the calling thread has waited for other trainers so far.
        stopped: set when the run can't go on.
        loads: of this trainer; their seconds count from the first batch of this process on.
        clock: returns seconds.

    Attributes:
        slowed: batches that they made longer.
        added: seconds that they added to these.
    """

    def __init__(
        self,
        step: Step,
        waited: Callable[[], float],
        stopped: threading.Event,
        loads: Sequence[LoadConfig] = (),
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._step, self._waited, self._stopped = step, waited, stopped
        self._loads, self._clock = loads, clock
        self._began: float | None = None
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self.slowed, self.added = 0, 0.0

    def compute(self, rows: Sequence[Any], data: BatchData, timestamp: int) -> Any:
        """See `Step.compute`."""
        begin, waited = self._clock(), self._waited()
        self._began = begin if self._began is None else self._began
        loss = self._step.compute(rows, data, timestamp)
        if isinstance(loss, torch.Tensor) and loss.is_cuda:
            torch.cuda.current_stream(loss.device).synchronize()  # otherwise only the kernel launches would be timed
        own = self._clock() - begin - (self._waited() - waited)
        taken = slowed(self._loads, own, begin - self._began)
        if taken > own:
            self._linger(taken - own)
        if data.share:
            self._times.append((data.share, taken))
        return loss

    def take(self) -> list[tuple[float, float]]:
        """Returns (part of a global batch, seconds) of each batch since the last call, of the last 4096 at most."""
        taken = list(self._times)
        self._times.clear()
        return taken

    def _linger(self, seconds: float) -> None:
        self.slowed += 1
        self.added += seconds
        self._stopped.wait(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
