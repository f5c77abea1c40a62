"""The page directory against a plain one: who is in memory, who must go, in any order of calls."""

from dataclasses import dataclass, field

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.storage.disk.directory import WRITING, Directory

JIT = not numba.config.DISABLE_JIT
PAGES, FRAMES, ENTRIES, BATCHES = 12, 5, 14, 3
EXAMPLES = settings(max_examples=300 if JIT else 60, deadline=None)


@dataclass
class Resident:
    """What is known of a page in memory. `next_use` None: as far as announced, nobody uses it."""

    pins: int = 0
    dirty: bool = False
    next_use: int | None = None


@dataclass
class NaiveDirectory:
    """`idle` are unheld pages that no announced batch uses, the first to go first; `pending` the announced batches."""

    frames: int
    resident: dict[int, Resident] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    pending: list[tuple[int, list[int]]] = field(default_factory=list)
    writing: set[int] = field(default_factory=set)

    def can_announce(self, pages):
        entries = sum(len(known) for _, known in self.pending)
        return len(self.pending) <= BATCHES and entries + len(pages) <= ENTRIES

    def announce(self, pages, batch_index):
        for page in pages:
            known = any(page in batch for _, batch in self.pending)
            held = self.resident.get(page)
            if held and not known:
                held.next_use = batch_index
                if page in self.idle:
                    self.idle.remove(page)
        self.pending.append((batch_index, pages))

    def shortage(self, pages):
        missing = [page for page in pages if page not in self.resident]
        if self.writing & set(missing):
            return 2
        going = sum(not held.pins for page, held in self.resident.items() if page not in pages)
        return int(len(missing) > self.frames - len(self.resident) + going)

    def hold(self, pages, announced):
        """Returns the missing pages, who must go (in order, as far as that is told), and their next uses."""
        missing = [page for page in pages if page not in self.resident]
        for page in pages:
            if page in self.resident:
                self.resident[page].pins += 1
                if page in self.idle:
                    self.idle.remove(page)
        needed = max(0, len(missing) - (self.frames - len(self.resident)))
        idle = self.idle[:needed]
        waiting = [held.next_use for page, held in self.resident.items() if not held.pins and page not in self.idle]
        uses = sorted(waiting, reverse=True)[: needed - len(idle)]
        assert None not in waiting
        if announced:
            self.pending.pop(0)
        return missing, idle, uses

    def settle(self, pages, missing, gone, announced):
        """What `hold` said, with those who really went."""
        for page in gone:
            if page in self.idle:
                self.idle.remove(page)
            del self.resident[page]
        for page in missing:
            self.resident[page] = Resident(pins=1)
        if announced:
            for page in pages:
                later = [batch_index for batch_index, batch in self.pending if page in batch]
                self.resident[page].next_use = later[0] if later else None

    def release(self, pages, oldest):
        for page in pages:
            held = self.resident[page]
            held.pins -= 1
            if not held.pins and held.next_use is None:
                self.idle.insert(0, page) if oldest else self.idle.append(page)


def array(pages):
    return np.array(sorted(pages), np.int64)


class Both:
    """A directory and a naive one that are told the same; what they say is compared."""

    def __init__(self):
        self.slot_of = np.zeros(PAGES, np.int64)
        self.directory = Directory(PAGES, FRAMES, ENTRIES, BATCHES, self.slot_of)
        self.naive, self.held, self.batch_index = NaiveDirectory(FRAMES), [], 0

    def announce(self, pages):
        can = self.naive.can_announce(pages)
        assert self.directory.can_announce(array(pages)) == can
        if can:
            self.directory.announce(array(pages), self.batch_index)
            self.naive.announce(pages, self.batch_index)
            self.batch_index += 1

    def hold(self, pages, batch_index=-1):
        announced, before = batch_index >= 0, set(self.naive.resident)
        shortage = self.naive.shortage(pages)
        assert self.directory.shortage(array(pages)) == shortage
        if shortage:
            return False
        dirty = {page for page in before if self.naive.resident[page].dirty}
        uses = {page: self.naive.resident[page].next_use for page in before}
        frame_of = dict(zip(before, self.directory.frames_of(np.array([*before], np.int64)).tolist(), strict=True))
        missing, idle, next_uses = self.naive.hold(pages, announced)
        said, victims = self.directory.hold(array(pages), batch_index)
        gone = {page for page in before if self.directory.arrays.frame_of[page] == 0}
        assert said.tolist() == missing
        assert set(idle) <= gone and sorted((uses[page] for page in gone - set(idle)), reverse=True) == next_uses
        assert sorted(victims[victims >= 0].tolist()) == sorted(gone & dirty)
        for page, victim in zip(missing, victims.tolist(), strict=True):
            frame = int(self.directory.frames_of(array([page]))[0])
            assert victim < 0 or frame == frame_of[victim]
        self.naive.settle(pages, missing, gone, announced)
        self.naive.writing |= gone & dirty
        self.slot_of[array(gone & dirty)] |= WRITING
        self.held.append(pages)
        return True

    def fetch(self):
        if self.naive.pending:
            batch_index, pages = self.naive.pending[0]
            self.hold(pages, batch_index)

    def release(self, which, oldest):
        if self.held:
            pages = self.held.pop(which % len(self.held))
            self.directory.release(array(pages), oldest)
            self.naive.release(pages, oldest)

    def change(self, which):
        for pages in self.held[which % len(self.held) :] if self.held else ():
            self.directory.arrays.dirty[self.directory.frames_of(array(pages))] = 1
            for page in pages:
                self.naive.resident[page].dirty = True

    def written(self):
        self.slot_of[:] = 0
        self.naive.writing.clear()

    def check(self):
        inside = {page: held for page, held in self.naive.resident.items()}
        frames = self.directory.frames_of(np.arange(PAGES))
        assert set(np.flatnonzero(frames >= 0).tolist()) == set(inside)
        assert len(set(frames[frames >= 0].tolist())) == len(inside)
        for first, last in ((0, PAGES), (3, 7)):
            dirty = [page for page, held in sorted(inside.items()) if held.dirty and first <= page < last]
            assert self.directory.dirty_pages(first, last).tolist() == dirty


pages = st.sets(st.integers(0, PAGES - 1), min_size=1, max_size=FRAMES).map(sorted)
calls = st.one_of(
    st.tuples(st.just("announce"), pages),
    st.tuples(st.just("fetch")),
    st.tuples(st.just("fetch")),
    st.tuples(st.just("hold"), pages),
    st.tuples(st.just("release"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("release"), st.integers(0, 9), st.just(False)),
    st.tuples(st.just("change"), st.integers(0, 9)),
    st.tuples(st.just("written")),
)


@EXAMPLES
@given(story=st.lists(calls, max_size=60))
def test_any_calls_do_what_the_naive_directory_does(story):
    both = Both()
    for name, *arguments in story:
        getattr(both, name)(*arguments)
        both.check()


def loaded(*batches, ahead=()):
    """A directory that has held the batches, one after the other, while those of `ahead` were announced before."""
    both = Both()
    for pages in batches:
        both.hold(list(pages))
        both.release(0, False)
    for pages in ahead:
        both.announce(list(pages))
    return both


def gone(both):
    return {page for page in range(PAGES) if page not in both.naive.resident}


def test_the_page_goes_that_is_needed_last():
    both = loaded((0, 1, 2), (3, 4), ahead=((2, 4), (0, 3), (1, 2)))
    both.hold([5])
    assert 1 not in both.naive.resident  # batch 2 alone uses it; page 2 is needed by batch 0 too
    both.hold([6])
    assert {2, 4} <= set(both.naive.resident)  # of batch 0


def test_the_page_that_nobody_announced_goes_first_and_of_these_the_one_used_longest_ago():
    both = loaded((0,), (1,), (2,), (3,), (4,), ahead=((3,),))
    both.hold([1])
    both.release(0, False)
    for new, old in ((5, 0), (6, 2), (7, 4), (8, 1), (9, 3)):
        assert old in both.naive.resident
        both.hold([new])
        assert old not in both.naive.resident


def test_what_is_released_as_oldest_goes_before_what_lay_there():
    both = loaded((0,), (1,), (2,), (3,))
    both.hold([4])
    both.release(0, True)
    both.hold([5])
    assert 4 not in both.naive.resident and 0 in both.naive.resident


def test_changed_pages_leave_once():
    both = loaded()
    both.hold([0, 1])
    both.change(0)
    both.release(0, False)
    assert both.directory.dirty_pages(0, PAGES).tolist() == [0, 1]
    both.hold([2, 3, 4, 5, 6])
    assert both.naive.writing == {0, 1} and both.directory.dirty_pages(0, PAGES).size == 0
    assert both.directory.shortage(array([0])) == 2  # not before its bytes are on the disk
    both.written()
    assert both.directory.shortage(array([0])) == 1  # all frames are held
    both.release(0, False)
    both.hold([0, 1])
    both.release(0, False)
    both.hold([7, 8, 9, 10, 11])
    assert not both.naive.writing


def test_frames_that_are_spared_can_still_be_evicted():
    both = loaded()
    for pages in ([0], [0, 1], [7], [7, 8], [0, 7], [0, 1, 2, 7]):
        left = FRAMES - len(pages)
        assert [both.directory.shortage(array(pages), spare) for spare in (0, left, left + 1)] == [0, 0, 1]
    both.hold([0, 1])
    assert both.directory.shortage(array([0, 1]), FRAMES - 2) == 0
    assert both.directory.shortage(array([0, 2]), FRAMES - 3) == 0
    assert both.directory.shortage(array([0, 2]), FRAMES - 2) == 1


def test_a_window_of_many_batches_wraps_round():
    """Batch numbers and entries go round their rings several times."""
    both, generator = Both(), np.random.default_rng(0)
    for _ in range(200 if JIT else 60):
        both.announce(sorted(generator.choice(PAGES, generator.integers(1, 4), replace=False).tolist()))
        if len(both.naive.pending) > BATCHES or not both.naive.can_announce([0, 1, 2]):
            both.fetch()
            both.change(-1)
            both.written()
            both.release(0, False)
        both.check()
    assert both.batch_index > 40


@pytest.mark.parametrize("fetched", [False, True])
def test_after_forgetting_it_is_as_new(fetched):
    both = loaded((0, 1, 2), ahead=((2, 3), (3, 4)))
    both.hold([5])
    both.change(0)
    if fetched:
        both.fetch()
    both.directory.forget()
    assert not both.directory.arrays.entry_of.any()
    fresh = Both()
    fresh.directory, fresh.slot_of = both.directory, both.slot_of
    fresh.written()
    fresh.check()
    for pages in ([4, 5], [3, 4], [2, 4], [1, 4]):
        fresh.announce(pages)
    for _ in range(4):
        fresh.fetch()
        fresh.change(0)
        fresh.release(0, False)
        fresh.written()
        fresh.check()
    fresh.hold([6, 7, 8])
    fresh.check()
