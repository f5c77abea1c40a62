"""Knows which page is in which frame of memory, and which page to evict.

A frame holds one page. A page with pins stays. Of the other pages the one whose next use is farthest is evicted
(Belady, IBM Systems Journal 5(2), 1966), as far as announced batches tell: first pages that none of them uses, the
least recently used first.

Not thread-safe: the tier holds its lock during every call. All calls take time linear in the number of pages given.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu.jit import compiled, inlined
from marius_oac.storage.reserved import reserve

UNUSED = np.int64(2**62)
"""The next use of a page that no announced batch uses."""
WRITING = 1 << 62
"""Bit of `slot_of`: the page is being written to the slot."""

TOO_FEW_FRAMES, ON_ITS_WAY = 1, 2
"""Why a claim can't get frames now: others hold too many, or a page is still being written."""

_SHORT_MASK = np.int64(2**31 - 1)

# Of `state`:
_ANNOUNCED, _FETCHED, _EVICTABLE, _ENTRY, _ENTRIES = range(5)


class Arrays(NamedTuple):
    """The kernels' arrays. Frames and entries are numbered from 1 where 0 means none, since fresh memory is zero."""

    frame_of: np.ndarray  # int32 [pages]: its frame
    entry_of: np.ndarray  # int32 [pages]: its last entry in `following`, if an announced batch has yet to fetch it
    following: np.ndarray  # int32 [entries]: of each page of each announced batch, the next that uses it; see `_next`
    page_in: np.ndarray  # int64 [frames]
    pins: np.ndarray  # int32 [frames]
    dirty: np.ndarray  # uint8 [frames]
    next_use: np.ndarray  # int64 [frames]: the next announced batch that uses its page, or UNUSED
    # Circular lists of the frames without pins. The heads of the lists follow the frames: free, idle (next use unknown,
    # least recently used first), and one for each announced batch that is the next to use the frames.
    before: np.ndarray  # int32 [frames + lists]
    after: np.ndarray  # int32 [frames + lists]
    state: np.ndarray  # int64 [5]


@inlined
def _unlink(before, after, node):
    before[after[node]] = before[node]
    after[before[node]] = after[node]


@inlined
def _link(before, after, node, behind):
    """Inserts a node after another."""
    after[node], before[node] = after[behind], behind
    before[after[behind]] = node
    after[behind] = node


@inlined
def _list_for(frames, lists, next_use):
    """The head of the list for frames with this next use."""
    return frames + 1 if next_use == UNUSED else frames + 2 + next_use % (lists - 2)


@inlined
def _short(batch_index):
    """A batch index as stored in `following`, where -1 is UNUSED."""
    return np.int32(batch_index & _SHORT_MASK)


@inlined
def _next(short, fetched):
    """The batch index stored as `short`, which is less than 2**31 after `fetched`."""
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
def _shortage(d, pages, slot_of, spare):
    """0 if the pages can get frames now such that `spare` can be evicted still, else `TOO_FEW_FRAMES` or
    `ON_ITS_WAY`."""
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
    return TOO_FEW_FRAMES if missing > d.state[_EVICTABLE] - idle_hits - spare else 0


@compiled
def _hold_resident(d, pages, misses):
    """Pins the pages that are in memory. Writes the indices of the others in `pages` to `misses`; returns how many."""
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
    """Assigns each missing page a frame. Writes the changed page that was in it, or -1, to `victims`."""
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
    """Removes batch `batch_index`, the first announced one, and sets the next uses of its pages to those after it."""
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
    """Writes the changed pages in [first, last) to `pages`. Returns how many."""
    count = 0
    for frame in range(d.dirty.size):
        if d.dirty[frame] and first <= d.page_in[frame] < last:
            pages[count] = d.page_in[frame]
            count += 1
    return count


class Directory:
    """The assignment of pages to frames.

    Args:
        pages: page numbers are in [0, pages).
        frames: the number of frames, below 2**31.
        entries: the largest number of pages of all announced batches that are not fetched yet, below 2**31.
        batches: the largest number of announced batches that are not fetched yet.
        slot_of: int64 [pages], each page's slot; used only for its bit `WRITING`.
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
        """Frees every frame, and removes all announced batches."""
        d = self.arrays
        frames, nodes = d.pins.size, d.before.size
        held = d.page_in[d.page_in >= 0]
        d.frame_of[held] = 0
        if self._pending:  # else there are no entries, and a large table need not be scanned
            d.entry_of[np.flatnonzero(d.entry_of)] = 0
        self._pending = 0
        d.page_in[:], d.pins[:], d.dirty[:], d.next_use[:] = -1, 0, 0, UNUSED
        d.before[:] = d.after[:] = np.arange(nodes)
        ring = np.append(np.arange(frames), frames)  # the free list holds all frames
        d.after[ring], d.before[ring] = np.roll(ring, -1), np.roll(ring, 1)
        d.state[:] = 0
        d.state[_EVICTABLE] = frames

    def can_announce(self, pages: np.ndarray) -> bool:
        """Whether another batch can be announced."""
        d = self.arrays
        return self._pending < self._batches and d.state[_ENTRIES] + pages.size <= d.following.size

    def announce(self, pages: np.ndarray, batch_index: int) -> None:
        """Records that batch `batch_index` will use `pages`, int64 [n], ascending. Batches are announced in order."""
        self._pending += 1
        _announce(self.arrays, pages, batch_index)

    def shortage(self, pages: np.ndarray, spare: int = 0) -> int:
        """0 if `hold` can be called now, after which `spare` frames are without pins, else `TOO_FEW_FRAMES` or
        `ON_ITS_WAY`."""
        return _shortage(self.arrays, pages, self._slot_of, spare)

    def hold(self, pages: np.ndarray, batch_index: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Pins `pages`, int64 [n], ascending, and assigns frames to missing ones.

        Args:
            batch_index: the announced batch that uses them; -1: they were not announced.

        Returns:
            The missing pages, int64 [m], and for each the changed page that was evicted from its frame, or -1, int64
            [m]. The evicted page must be copied before the missing one is read.
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
        """Unpins `pages`, int64 [n]. With `oldest`, those that no announced batch uses are evicted first."""
        _release(self.arrays, pages, oldest)

    def frames_of(self, pages: np.ndarray) -> np.ndarray:
        """The frames of pages in memory, int64 [n]."""
        return self.arrays.frame_of[pages].astype(np.int64) - 1

    def dirty_pages(self, first: int, last: int) -> np.ndarray:
        """The pages in [first, last) that have changed since they were last written, int64 [n], ascending."""
        pages = np.empty(self.arrays.dirty.size, np.int64)
        return np.sort(pages[: _dirty_pages(self.arrays, first, last, pages)])


def zeros(count: int, dtype: type) -> np.ndarray:
    """A zeroed array [count], whose memory is allocated as it is written."""
    size = max(count, 1) * np.dtype(dtype).itemsize
    return np.frombuffer(reserve(size, size), dtype, count)
