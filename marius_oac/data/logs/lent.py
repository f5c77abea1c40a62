"""Memory that is lent, and lent again once nothing views it any more.

New memory costs a fault for each of its pages, which the system fills with zeros first. For the messages of a log that
took as long as writing them.
"""

from __future__ import annotations

import weakref

import numpy as np

_ROOM = 8  # a block is an eighth larger than it has to be, so that it fits spans of almost the same size


class LentMemory:
    """Lends blocks of memory. One thread borrows; any thread may hold what was lent, and views of it.

    Args:
        most: the number of blocks that are kept. While all of them are lent, memory that is not kept is lent.
    """

    def __init__(self, most: int):
        self._most = most
        self._blocks: list[tuple[memoryview, weakref.ref[np.ndarray]]] = []  # each with what was lent of it last

    def borrow(self, size: int) -> np.ndarray:
        """Memory that nothing else views, uint8 [size], with any content. It is lent again when this array, its views
        and the buffers of these are gone, without being given back."""
        free = [number for number, (_, lent) in enumerate(self._blocks) if lent() is None]
        fitting = [number for number in free if self._blocks[number][0].nbytes >= size]
        if not (fitting or free) and len(self._blocks) == self._most:
            return np.empty(size, np.uint8)
        number = (fitting or free or [len(self._blocks)])[0]
        block = self._blocks[number][0] if fitting else memoryview(np.empty(size + size // _ROOM, np.uint8))
        # `frombuffer`, whose base is no array: else views of what was lent would refer to that array in its place.
        found: np.ndarray = np.frombuffer(block, np.uint8, size)
        self._blocks[number : number + 1] = [(block, weakref.ref(found))]
        return found
