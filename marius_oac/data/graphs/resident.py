"""Mapped files that are larger than memory: how much of one counts as this process's memory at a time.

A page of a mapped file that was read stays with the process until the system takes it back, which on a machine with
enough memory it never does: a pass over all edges in random order ends with all of them in memory. Letting go of the
pages costs a fault when one is read again, not a read of the disk while the system has it cached.

Guarantees: `touched` may be called by any number of threads while others read the array; nothing that they see changes.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np

BYTES_A_TOUCH = 1 << 21  # a fault brings in what the system keeps as one around the page: a huge page at most


class Resident:
    """Keeps at most about `most_bytes` of a mapped array in this process.

    Args:
        array: as `np.load(..., mmap_mode="r")` gives it. One that is not mapped, or is no larger than `most_bytes`, is
            left alone.
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
        """So many elements have been read, at random."""
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
        """Lets go of all pages."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
