"""An emulated link between host and device, for measuring the pipeline on a machine without one.

A transfer occupies its direction for bytes / bandwidth and arrives a latency later, as a DMA engine's would: transfers
of one direction queue up, the waiting thread burns no CPU.
"""

from __future__ import annotations

import threading
import time

from marius_oac.config.sections import LinkConfig
from marius_oac.runtime.channel import Closed


class Link:
    """One direction of a link; `stopped` ends every wait."""

    def __init__(self, config: LinkConfig, stopped: threading.Event):
        self._seconds_per_byte = 1e-9 / config.bandwidth
        self._latency = config.latency * 1e-6
        self._stopped = stopped
        self._lock = threading.Lock()
        self._free_at = 0.0

    def transfer(self, num_bytes: int) -> None:
        """Returns when a transfer of so many bytes, asked for now, would have arrived."""
        with self._lock:
            begin = max(time.perf_counter(), self._free_at)
            self._free_at = begin + num_bytes * self._seconds_per_byte
            arrival = self._free_at + self._latency
        if self._stopped.wait(max(0.0, arrival - time.perf_counter())):
            raise Closed("link")
