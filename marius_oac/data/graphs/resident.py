"""Limits how much of a mapped file is resident in this process's memory.

A page of a mapped file that was read stays resident until the system reclaims it, which on a machine with enough memory
never happens: after a pass over all edges in random order all of them are resident. Dropping the pages costs a fault
when one is read again, but no read from disk as long as the page cache has it.

Guarantees: any number of threads may call `touched` while others read the array. What they read doesn't change.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np

BYTES_A_TOUCH = 1 << 21  # a fault maps up to a huge page around the address


class Resident:
    """Keeps at most about `most_bytes` of a mapped array resident.

    Args:
        array: any shape and dtype, as `np.load(..., mmap_mode="r")` gives it. Nothing is done for an array that is not
            mapped or is no larger than `most_bytes`.
        most_bytes: None: no limit.
    """

    def __init__(self, array: np.ndarray, most_bytes: int | None = None):
        mapped = getattr(array, "_mmap", None)
        self._map: mmap.mmap | None = mapped if most_bytes is not None and array.nbytes > most_bytes else None
        self.at_once = max(1, (most_bytes or 0) // BYTES_A_TOUCH) if self._map else max(1, len(array))
        """Elements that may be read, in any order, between two calls of `touched`."""
        self._lock = threading.Lock()
        self._touched = 0

    def touched(self, count: int) -> None:
        """Counts `count` elements that were read in random order; drops all pages when the limit is reached."""
        if self._map is None:
            return
        with self._lock:
            self._touched += count
            full = self._touched >= self.at_once
            if full:
                self._touched = 0
        if full:
            self.drop()

    def drop(self) -> None:
        """Drops all pages."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
