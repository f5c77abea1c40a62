"""Allocates slots of the page files. A page that a checkpoint refers to is never overwritten.

A page has no fixed slot. Each time it is written it goes to a free slot, next to other pages that are written then, so
that a thousand scattered pages need only a few large writes. A page that a checkpoint refers to stays unchanged until
the last such checkpoint is removed (shadow paging, as in System R: Gray et al., ACM Computing Surveys 13(2), 1981).
Slots are allocated from the emptiest segment. The files grow if that is more than half full, so they are at most about
twice as large as the slots in use.

Not thread-safe: the tier holds its lock during every call.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from marius_oac.kernels.cpu.pages import SLOTS_PER_SEGMENT

_HALF = SLOTS_PER_SEGMENT // 2


class Slots:
    """Slots with reference counts: the table and checkpoints refer to them.

    Args:
        grow: called with the number of slots that the files must hold; may raise OSError.
    """

    def __init__(self, grow: Callable[[int], None]):
        self._grow = grow
        self._references = np.zeros(0, np.uint32)
        self._free = np.zeros(0, np.int32)  # free slots of each segment
        self._open = np.zeros(0, np.int64)  # free slots to allocate next
        self._segment = -1

    def __len__(self) -> int:
        """The number of slots of the files."""
        return self._references.size

    @property
    def used(self) -> int:
        """The number of slots with references."""
        return self._references.size - int(self._free.sum())

    def take(self, count: int) -> np.ndarray:
        """Allocates slots for `count` pages, int64 [count], with one reference each. Raises what `grow` raises."""
        parts, left = [], count
        while left:
            if not self._open.size:
                self._open_segment()
            part, self._open = self._open[:left], self._open[left:]
            self._references[part] = 1
            self._free[self._segment] -= part.size
            parts.append(part)
            left -= part.size
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def refer(self, slots: np.ndarray) -> None:
        """Adds a reference to each of `slots`, int64 [n], all different."""
        if slots.size and slots.max() >= len(self):
            self._resize(int(slots.max()) + 1)
        new = self._references[slots] == 0
        self._references[slots] += 1
        np.subtract.at(self._free, slots[new] // SLOTS_PER_SEGMENT, 1)

    def let_go(self, slots: np.ndarray) -> None:
        """Removes a reference from each of `slots`, int64 [n], all different."""
        self._references[slots] -= 1
        empty = slots[self._references[slots] == 0]
        np.add.at(self._free, empty // SLOTS_PER_SEGMENT, 1)

    def forget(self) -> None:
        """Removes all references."""
        self._references[:] = 0
        self._free[:] = SLOTS_PER_SEGMENT
        self._open = self._open[:0]

    def _open_segment(self) -> None:
        emptiest = int(np.argmax(self._free)) if self._free.size else -1
        if emptiest < 0 or self._free[emptiest] < _HALF:
            try:  # grows by a sixteenth, so that the file system can allocate longer extents
                self._resize(len(self) + max(1, self._free.size // 16) * SLOTS_PER_SEGMENT)
                emptiest = int(np.argmax(self._free))
            except OSError:
                if emptiest < 0 or not self._free[emptiest]:
                    raise
        first = emptiest * SLOTS_PER_SEGMENT
        self._segment = emptiest
        self._open = first + np.flatnonzero(self._references[first : first + SLOTS_PER_SEGMENT] == 0)

    def _resize(self, count: int) -> None:
        segments = -(-count // SLOTS_PER_SEGMENT)
        added = segments - self._free.size
        self._grow(segments * SLOTS_PER_SEGMENT)
        self._references = np.concatenate((self._references, np.zeros(added * SLOTS_PER_SEGMENT, np.uint32)))
        self._free = np.concatenate((self._free, np.full(added, SLOTS_PER_SEGMENT, np.int32)))
