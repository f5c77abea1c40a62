"""Slots: what somebody refers to is never handed out, and the files stay as small as they can."""

import errno
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu.pages import SLOTS_PER_SEGMENT
from marius_oac.storage.disk.slots import Slots


class Disk:
    """What the slots grow on; `room` None: as much as they ask for."""

    def __init__(self, room=None):
        self.room, self.slots, self.refused = room, 0, 0

    def grow(self, slots):
        if self.room is not None and slots > self.room:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", "a file")
        self.slots = max(self.slots, slots)


calls = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 600)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("drop"), st.integers(0, 5)),
    st.tuples(st.just("let go"), st.integers(1, 600), st.integers(0, 9)),
    st.tuples(st.just("forget"), st.integers(0, 5)),
)


@settings(max_examples=150, deadline=None)
@given(story=st.lists(calls, max_size=25), room=st.sampled_from([None, 512, 1024]))
def test_what_somebody_refers_to_is_never_handed_out(story, room):
    disk = Disk(room)
    slots, table, checkpoints, most = Slots(disk.grow), set(), [], 0
    for name, *arguments in story:
        if name == "take":
            try:
                taken = slots.take(arguments[0]).tolist()
            except OSError:
                used = len(table.union(*checkpoints))
                assert room is not None and used + arguments[0] > room, "refused, and there was room"
                return
            assert len(set(taken)) == len(taken) == arguments[0]
            assert not table.union(*checkpoints) & set(taken)
            table |= set(taken)
        elif name == "checkpoint":
            slots.refer(np.array(sorted(table), np.int64))
            checkpoints.append(set(table))
        elif name == "drop" and checkpoints:
            slots.let_go(np.array(sorted(checkpoints.pop(arguments[0] % len(checkpoints))), np.int64))
        elif name == "let go":
            some = sorted(table)[arguments[1] :: 3][: arguments[0]]
            slots.let_go(np.array(some, np.int64))
            table -= set(some)
        elif name == "forget":  # as a run does that goes on from a checkpoint
            slots.forget()
            for each in checkpoints:
                slots.refer(np.array(sorted(each), np.int64))
            table = set(checkpoints[arguments[0] % len(checkpoints)]) if checkpoints else set()
            slots.refer(np.array(sorted(table), np.int64))
        used = len(table.union(*checkpoints))
        most = max(most, used)
        assert slots.used == used
        assert len(slots) % SLOTS_PER_SEGMENT == 0 and disk.slots >= len(slots)
        assert len(slots) <= 2 * most * 17 / 16 + 2 * SLOTS_PER_SEGMENT


def test_slots_that_are_taken_together_lie_together():
    taken = Slots(Disk().grow).take(1000)
    assert np.flatnonzero(np.diff(taken) != 1).size <= 1000 // SLOTS_PER_SEGMENT


def test_rewriting_a_table_between_checkpoints_takes_about_twice_its_size():
    slots, generator = Slots(Disk().grow), np.random.default_rng(0)
    place = slots.take(4000)
    kept = place.copy()
    slots.refer(kept)
    for number in range(400):
        pages = generator.choice(4000, 50, replace=False)
        new = slots.take(50)
        slots.let_go(place[pages])
        place[pages] = new
        if number % 20 == 0:
            slots.refer(place)
            slots.let_go(kept)
            kept = place.copy()
    assert slots.used <= 8000 and len(slots) <= 2.2 * 8000
    assert len(slots) <= 2.2 * 5100  # a thousand pages change between two checkpoints


def test_a_full_disk_is_used_to_its_last_hole():
    slots = Slots(Disk(512).grow)
    taken = slots.take(512)
    slots.let_go(taken[::8])
    assert sorted(slots.take(64).tolist()) == taken[::8].tolist()
    with pytest.raises(OSError) as caught:
        slots.take(1)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "a file")
    slots.let_go(taken[100:101])
    assert slots.take(1).tolist() == [taken[100]]


@pytest.mark.parametrize("count", [2, 255, 256, 300])
def test_a_slot_may_be_in_many_checkpoints(count):
    """`checkpoint.keep` is any number."""
    slots = Slots(Disk(256).grow)
    references = Counter()
    taken = slots.take(256)
    for _ in range(count):
        slots.refer(taken[:10])
        references.update(taken[:10].tolist())
    slots.let_go(taken)
    assert slots.used == 10
    assert sorted(slots.take(246).tolist()) == taken[10:].tolist()
    for left in range(count - 1, -1, -1):
        slots.let_go(taken[:10])
        assert slots.used == (246 if not left else 256)


def test_referring_beyond_the_files_grows_them():
    disk = Disk()
    slots = Slots(disk.grow)
    slots.refer(np.array([3, 700]))
    assert len(slots) == disk.slots == 768 and slots.used == 2
    slots.refer(np.zeros(0, np.int64))
    taken = slots.take(766)
    assert {3, 700}.isdisjoint(taken.tolist()) and len(slots) == 768


def test_nothing_is_taken_where_nothing_is_asked_for():
    slots = Slots(Disk(0).grow)
    assert slots.take(0).tolist() == [] and len(slots) == slots.used == 0
