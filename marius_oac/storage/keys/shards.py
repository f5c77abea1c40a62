"""The slots of an index's shards: how many there are, how they grow, when their memory is freed.

Guarantees:
- The memory of a shard that has grown is freed when no search can be using it: every search holds the epoch in which
  it began, an epoch holds the slots that were replaced in it and the epoch after it, and the last epoch is held here.
  Slots that a search can have seen are replaced in its epoch or a later one, so they live as long as the search.
- `make_room` and `rebuild` are called by one thread at a time; searches go on meanwhile.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu import keys as kernels
from marius_oac.kernels.cpu.atomics import LANES
from marius_oac.kernels.cpu.keys import ADDRESS_BITS
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.storage.reserved import reserve

_GROWTH = 1.7  # a key is moved 1.4 times; slots take 6.6 bytes a key on average, and 6.2 with 1.5 and twice
_PHASES = 8  # a shard has every eighth size class, so that shards of as many keys don't all grow at the same time
_LINE_WORDS = LANES // 2
_MAX_SLOTS = 1 << 32
_HUGE_PAGE = 1 << 21


def _size_classes() -> np.ndarray:
    """The number of slots of each size class, int64 [n], multiples of a cache line's. Class 0 takes no keys: all shards
    begin with one block of it."""
    sizes, exact = [LANES], float(LANES)
    while sizes[-1] < _MAX_SLOTS:
        sizes.append(-(-int(exact) // LANES) * LANES)
        exact *= _GROWTH ** (1 / _PHASES)
    return np.array(sizes, np.int64)


def _empty_slots(counts: np.ndarray) -> list[np.ndarray]:
    """Blocks of so many slots, int64 [count / 2] each, that begin with a cache line.

    Large ones lie in huge pages together. As shards that grew at one time grow again at about one time, their memory is
    not kept for long by one of them.
    """
    words = int(counts.sum()) // 2
    if 8 * words >= _HUGE_PAGE:
        memory = np.frombuffer(reserve(8 * words), np.int64, words)
    else:
        memory = np.zeros(words + _LINE_WORDS - 1, np.int64)
        memory = memory[-memory.ctypes.data % (8 * _LINE_WORDS) // 8 :]
    ends = np.cumsum(counts // 2).tolist()
    return [memory[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


_SIZES = _size_classes()
_ROOMS = np.concatenate([[0], _SIZES[1:] * 4 // 5])  # keys of a class: a search needs some slots empty


class Epoch:
    """The time between two replacements of slots."""

    def __init__(self) -> None:
        self.replaced: list[object] = []
        self.following: Epoch | None = None


class Shards:
    """The slots of `count` shards, empty at first.

    Args:
        records: the address of the index's records.
        capacity: the largest number of rows.
        pool: moves shards to larger slots.

    Attributes:
        index: the addresses, for kernels.
        held: how many keys each shard has, int64 [count]; who places keys or drops them counts.
        epoch: the last one.
    """

    def __init__(self, count: int, records: int, capacity: int, pool: ThreadPool) -> None:
        self.held, self.epoch, self._pool = np.zeros(count, np.int64), Epoch(), pool
        self._none = _empty_slots(_SIZES[:1])[0]
        self._directory = np.full(count, self._none.ctypes.data)
        self._slots: list[object] = [None] * count
        self._slot_bytes = 0
        self.index = kernels.Index(
            records, self._directory.ctypes.data, _SIZES.ctypes.data, count, capacity.bit_length()
        )

    @property
    def nbytes(self) -> int:
        """The memory in use, in bytes."""
        return self._slot_bytes + self._directory.nbytes + self.held.nbytes

    def make_room(self, counts: np.ndarray) -> None:
        """Makes room for so many more keys in each shard, int64 [shards]."""
        shards = np.flatnonzero(self.held + counts > _ROOMS[self._directory >> ADDRESS_BITS])
        if shards.size:
            needed = np.searchsorted(_ROOMS, (self.held + counts)[shards])
            self._move(shards, needed + (shards - needed) % _PHASES)

    def rebuild(self, shards: np.ndarray) -> None:
        """Makes the slots of some shards, int64 [n], anew, without dropped rows."""
        self._move(shards, self._directory[shards] >> ADDRESS_BITS)

    def _move(self, shards: np.ndarray, size_classes: np.ndarray) -> None:
        """Moves shards to new slots of the given size classes, both int64 [n]."""
        old = [self._slots[shard] for shard in shards.tolist()]
        new = _empty_slots(_SIZES[size_classes])
        more = sum(each.nbytes for each in new) - sum(each.nbytes for each in old if isinstance(each, np.ndarray))
        # Both are referenced until the directory has changed, since an interrupt may come between any two lines.
        for shard, *both in zip(shards.tolist(), old, new, strict=True):
            self._slots[shard] = both
        words = (size_classes << ADDRESS_BITS) | np.array([each.ctypes.data for each in new], np.int64)

        def part(first: int, end: int) -> None:
            with np.errstate(over="ignore"):
                kernels.move(self.index, shards[first:end], words[first:end])

        self._pool.over(shards.size, 1, part)
        epoch, following = self.epoch, Epoch()
        epoch.replaced += old
        epoch.following = following
        self.epoch = following
        for shard, slots in zip(shards.tolist(), new, strict=True):
            self._slots[shard] = slots
        self._slot_bytes += more
