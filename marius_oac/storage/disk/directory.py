"""Which page is in which frame of memory, who needs it, and which page goes when a frame is needed.

A frame is room for one page. A page that somebody holds (`pins` > 0) stays. Of the others the one goes whose next use
is farthest (Belady, IBM Systems Journal 5(2), 1966), as far as the batches that are announced tell: a page that none of
them uses goes first, the one first that was used longest ago.

Guarantees: none of its own; the tier's lock is held around every call. All calls take time linear in the pages given.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu.jit import compiled, inlined
from marius_oac.storage.reserved import reserve

UNUSED = np.int64(2**62)
"""The next use of a page that no announced batch uses."""
WRITING = 1 << 62
"""Bit of `slot_of`: the page is on its way to the slot."""

TOO_FEW_FRAMES, ON_ITS_WAY = 1, 2
"""Why a claim can't be held now: others hold too many frames, or a page is still being written."""

_SHORT_MASK = np.int64(2**31 - 1)

# Of `state`:
_ANNOUNCED, _FETCHED, _EVICTABLE, _ENTRY, _ENTRIES = range(5)


class Arrays(NamedTuple):
    """What the kernels work on. Frames and entries are counted from 1 where 0 means none: fresh memory is zero."""

    frame_of: np.ndarray  # int32 [pages]: its frame
    entry_of: np.ndarray  # int32 [pages]: its last entry in `following`, if an announced batch has yet to fetch it
    following: np.ndarray  # int32 [entries]: of each page of each announced batch, the next that uses it; see `_next`
    page_in: np.ndarray  # int64 [frames]
    pins: np.ndarray  # int32 [frames]
    dirty: np.ndarray  # uint8 [frames]
    next_use: np.ndarray  # int64 [frames]: the next announced batch that uses its page, or UNUSED
    # Circular lists of the frames that nobody holds; behind the frames come the heads of the lists: free, idle (next
    # use unknown, the first used longest ago), and one for each announced batch that is the next to use them.
    before: np.ndarray  # int32 [frames + lists]
    after: np.ndarray  # int32 [frames + lists]
    state: np.ndarray  # int64 [5]


@inlined
def _unlink(before, after, node):
    before[after[node]] = before[node]
    after[before[node]] = after[node]


@inlined
def _link(before, after, node, behind):
    """Puts a node behind another."""
    after[node], before[node] = after[behind], behind
    before[after[behind]] = node
    after[behind] = node


@inlined
def _list_for(frames, lists, next_use):
    """The head of the list for frames with this next use."""
    return frames + 1 if next_use == UNUSED else frames + 2 + next_use % (lists - 2)


@inlined
def _short(batch_index):
    """A sequence as `following` holds it; it holds -1 for UNUSED."""
    return np.int32(batch_index & _SHORT_MASK)


@inlined
def _next(short, fetched):
    """The sequence after `fetched`, by fewer than 2**31, that is held as `short`."""
    return UNUSED if short < 0 else fetched + ((short - fetched) & _SHORT_MASK)


@compiled
def _announce(d, pages, batch_index):
    frame_of, entry_of, following, next_use = d.frame_of, d.entry_of, d.following, d.next_use
    pins, before, after = d.pins, d.before, d.after
    frames = pins.size
    lists = before.size - frames
    entry = d.state[_ENTRY] + d.state[_ENTRIES]
    for i in range(pages.size):
        page = pages[i]
        if entry_of[page] > 0:
            following[entry_of[page] - 1] = _short(batch_index)
        else:
            frame = frame_of[page] - 1
            if frame >= 0 and next_use[frame] == UNUSED:
                next_use[frame] = batch_index
                if pins[frame] == 0:
                    _unlink(before, after, frame)
                    _link(before, after, frame, before[_list_for(frames, lists, batch_index)])
        place = (entry + i) % following.size
        following[place] = -1
        entry_of[page] = place + 1
    d.state[_ENTRIES] += pages.size
    d.state[_ANNOUNCED] = batch_index


@compiled
def _shortage(d, pages, slot_of):
    """0 if the pages can be held now, else `TOO_FEW_FRAMES` or `ON_ITS_WAY`."""
    frame_of, pins = d.frame_of, d.pins
    missing, idle_hits = 0, 0
    for i in range(pages.size):
        frame = frame_of[pages[i]] - 1
        if frame < 0:
            missing += 1
            if slot_of[pages[i]] & WRITING:
                return ON_ITS_WAY
        elif pins[frame] == 0:
            idle_hits += 1
    return TOO_FEW_FRAMES if missing > d.state[_EVICTABLE] - idle_hits else 0


@compiled
def _hold_resident(d, pages, misses):
    """Holds the pages that are in memory; `misses` gets the places of the others in `pages`. Returns how many."""
    frame_of, pins, before, after = d.frame_of, d.pins, d.before, d.after
    missing = 0
    for i in range(pages.size):
        frame = frame_of[pages[i]] - 1
        if frame < 0:
            misses[missing] = i
            missing += 1
            continue
        if pins[frame] == 0:
            _unlink(before, after, frame)
            d.state[_EVICTABLE] -= 1
        pins[frame] += 1
    return missing


@compiled
def _replace(d, pages, misses, victims):
    """Gives each missing page a frame; `victims` gets the changed page that was in it, or -1."""
    frame_of, page_in, pins, dirty, next_use = d.frame_of, d.page_in, d.pins, d.dirty, d.next_use
    before, after = d.before, d.after
    frames = pins.size
    lists = before.size - frames
    free, idle, farthest = frames, frames + 1, d.state[_ANNOUNCED]
    for i in range(misses.size):
        victims[i] = -1
        frame = after[free]
        if frame == free:
            frame = after[idle]
            head = idle
            while frame == head:
                head = _list_for(frames, lists, farthest)
                frame = after[head]
                if frame == head:
                    farthest -= 1
            old = page_in[frame]
            frame_of[old] = 0
            if dirty[frame]:
                victims[i], dirty[frame] = old, 0
        _unlink(before, after, frame)
        page = pages[misses[i]]
        page_in[frame], frame_of[page] = page, frame + 1
        pins[frame], next_use[frame] = 1, UNUSED
    d.state[_EVICTABLE] -= misses.size


@compiled
def _advance(d, pages, batch_index):
    """Batch `batch_index`, the first of the announced ones, has its pages: their next uses are the ones after it."""
    frame_of, entry_of, following, next_use = d.frame_of, d.entry_of, d.following, d.next_use
    entry = d.state[_ENTRY]
    for i in range(pages.size):
        place = (entry + i) % following.size
        next_use[frame_of[pages[i]] - 1] = _next(np.int64(following[place]), batch_index)
        if entry_of[pages[i]] == place + 1:
            entry_of[pages[i]] = 0
    d.state[_ENTRY] = (entry + pages.size) % following.size
    d.state[_ENTRIES] -= pages.size
    d.state[_FETCHED] = batch_index


@compiled
def _release(d, pages, oldest):
    frame_of, pins, next_use, before, after = d.frame_of, d.pins, d.next_use, d.before, d.after
    frames = pins.size
    lists = before.size - frames
    for i in range(pages.size):
        frame = frame_of[pages[i]] - 1
        pins[frame] -= 1
        if pins[frame] == 0:
            head = _list_for(frames, lists, next_use[frame])
            _link(before, after, frame, head if oldest and head == frames + 1 else before[head])
            d.state[_EVICTABLE] += 1


@compiled
def _dirty_pages(d, first, last, pages):
    """Changed pages in [first, last), into `pages`; returns how many."""
    count = 0
    for frame in range(d.dirty.size):
        if d.dirty[frame] and first <= d.page_in[frame] < last:
            pages[count] = d.page_in[frame]
            count += 1
    return count


class Directory:
    """Frames and pages.

    Args:
        pages: page numbers lie in [0, pages).
        frames: pages that the memory holds, below 2**31.
        entries: pages of all announced batches that have yet to be fetched, at most; below 2**31.
        batches: announced batches that have yet to be fetched, at most.
        slot_of: int64 [pages], where each page is on the disk; here only for its bit `WRITING`.
    """

    def __init__(self, pages: int, frames: int, entries: int, batches: int, slot_of: np.ndarray):
        self._slot_of, self._batches, self._pending = slot_of, batches + 1, 0
        lists = batches + 4
        self.arrays = Arrays(
            frame_of=zeros(pages, np.int32),
            entry_of=zeros(pages, np.int32),
            following=zeros(entries, np.int32),
            page_in=np.full(frames, -1, np.int64),
            pins=np.zeros(frames, np.int32),
            dirty=np.zeros(frames, np.uint8),
            next_use=np.full(frames, UNUSED),
            before=np.zeros(frames + lists, np.int32),
            after=np.zeros(frames + lists, np.int32),
            state=np.zeros(5, np.int64),
        )
        self.forget()

    def forget(self) -> None:
        """Every frame is free, no batch is announced."""
        d = self.arrays
        frames, nodes = d.pins.size, d.before.size
        held = d.page_in[d.page_in >= 0]
        d.frame_of[held] = 0
        if self._pending:  # else there is no entry, and of a large table nothing need be looked at
            d.entry_of[np.flatnonzero(d.entry_of)] = 0
        self._pending = 0
        d.page_in[:], d.pins[:], d.dirty[:], d.next_use[:] = -1, 0, 0, UNUSED
        d.before[:] = d.after[:] = np.arange(nodes)
        ring = np.append(np.arange(frames), frames)  # the free list holds all frames
        d.after[ring], d.before[ring] = np.roll(ring, -1), np.roll(ring, 1)
        d.state[:] = 0
        d.state[_EVICTABLE] = frames

    def can_announce(self, pages: np.ndarray) -> bool:
        """Whether there is room for one more batch among the announced ones."""
        d = self.arrays
        return self._pending < self._batches and d.state[_ENTRIES] + pages.size <= d.following.size

    def announce(self, pages: np.ndarray, batch_index: int) -> None:
        """Batch `batch_index` will use `pages`, int64 ascending; in the order of the sequence."""
        self._pending += 1
        _announce(self.arrays, pages, batch_index)

    def shortage(self, pages: np.ndarray) -> int:
        """0 if `hold` can be called now, else `TOO_FEW_FRAMES` or `ON_ITS_WAY`."""
        return _shortage(self.arrays, pages, self._slot_of)

    def hold(self, pages: np.ndarray, batch_index: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Holds `pages`, int64 ascending: they are in memory or get a frame each.

        Args:
            sequence: of the announced batch that uses them; -1: nobody announced it.

        Returns:
            The missing pages, and for each the changed page that had to leave its frame, or -1: copy that one before
            the missing page is read.
        """
        d, misses = self.arrays, np.empty(pages.size, np.int64)
        misses = misses[: _hold_resident(d, pages, misses)]
        victims = np.empty(misses.size, np.int64)
        _replace(d, pages, misses, victims)
        if batch_index >= 0:
            _advance(d, pages, batch_index)
            self._pending -= 1
        return pages[misses], victims

    def release(self, pages: np.ndarray, oldest: bool = False) -> None:
        """Lets go of `pages`. `oldest`: those that no announced batch uses go first, as if never used before."""
        _release(self.arrays, pages, oldest)

    def frames_of(self, pages: np.ndarray) -> np.ndarray:
        """The frames of pages that are held, int64."""
        return self.arrays.frame_of[pages].astype(np.int64) - 1

    def dirty_pages(self, first: int, last: int) -> np.ndarray:
        """Pages in [first, last) that have changed since they were last written, ascending."""
        pages = np.empty(self.arrays.dirty.size, np.int64)
        return np.sort(pages[: _dirty_pages(self.arrays, first, last, pages)])


def zeros(count: int, dtype: type) -> np.ndarray:
    """Zeroed memory that is taken as it is written."""
    size = max(count, 1) * np.dtype(dtype).itemsize
    return np.frombuffer(reserve(size, size), dtype, count)
