"""An emulated link between host and device, for measuring the pipeline on a machine without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class SlowLink:
    """A probe of a pipeline on the CPU: every batch passes a link on its way up and on its way down.

    Batches of one direction queue up, as at a DMA engine; the waiting thread burns no processor time.

    Args:
        seconds: for which a batch occupies its direction.
        latency: seconds after which it has arrived then.
        wait, clock: of seconds.
    """

    def __init__(
        self,
        seconds: float,
        latency: float = 0.0,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._seconds, self._latency, self._wait, self._clock = seconds, latency, wait, clock
        self._lock, self._free_at = threading.Lock(), {"upload": 0.0, "download": 0.0}

    def __call__(self, stage: str, batch_index: int) -> None:
        if stage not in self._free_at:
            return
        with self._lock:
            self._free_at[stage] = free_at = max(self._clock(), self._free_at[stage]) + self._seconds
        self._wait(max(0.0, free_at + self._latency - self._clock()))
