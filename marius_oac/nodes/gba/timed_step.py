"""Times the batches of a trainer.

Guarantee: time that a trainer waits for others within a batch is not counted as its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from marius_oac.types import BatchData, Step

_KEPT = 4096


class TimedStep:
    """Wraps a `marius_oac.types.Step` and times its batches. Other attributes are the step's own.

    Args:
        step: the trainer's.
        waited: returns the seconds that the calling thread has waited for other trainers so far.
        clock: returns seconds.
    """

    def __init__(self, step: Step, waited: Callable[[], float], clock: Callable[[], float] = time.perf_counter):
        self._step, self._waited, self._clock = step, waited, clock
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def compute(self, rows: Sequence[Any], data: BatchData, timestamp: int) -> Any:
        """See `Step.compute`."""
        begin, waited = self._clock(), self._waited()
        loss = self._step.compute(rows, data, timestamp)
        if isinstance(loss, torch.Tensor) and loss.is_cuda:
            torch.cuda.current_stream(loss.device).synchronize()  # otherwise only the kernel launches would be timed
        if data.share:
            self._times.append((data.share, self._clock() - begin - (self._waited() - waited)))
        return loss

    def take(self) -> list[tuple[float, float]]:
        """Returns (part of a global batch, seconds) of each batch since the last call, of the last 4096 at most."""
        taken = list(self._times)
        self._times.clear()
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
