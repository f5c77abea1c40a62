"""Memory is lent again when nothing views it any more, and never before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.data.logs.lent import LentMemory
from marius_oac.nodes.transport.messages import Examples, parse

HOLDERS = {
    "part": lambda found: found[8:72],
    "part of a part": lambda found: found[8:][:64],
    "other type": lambda found: found[8:72].view(np.int64),
    "two dimensions": lambda found: found[8:72].view(np.float32).reshape(4, 4),
    "memoryview": lambda found: memoryview(found[8:72]),
    "array of a memoryview": lambda found: np.frombuffer(memoryview(found[8:72]).cast("B"), np.float32),
    "read-only": lambda found: memoryview(found[8:72]).toreadonly(),
    "message": lambda found: Examples(1, 2, np.zeros(16, np.uint8), found[8:72]),
    "frames of a message": lambda found: Examples(1, 2, np.zeros(16, np.uint8), found[8:72]).frames(),
    "message that came": lambda found: parse(Examples(1, 2, np.zeros(16, np.uint8), found[8:72]).frames()),
}


def place(array):
    return array.ctypes.data


def places(memory, *sizes):
    """Where memory of each size is lent, each of which is gone before the next."""
    return [place(memory.borrow(size)) for size in sizes]


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_what_is_viewed_in_any_way_is_not_lent_again(holder):
    memory = LentMemory(1)
    found = memory.borrow(100)
    first = place(found)
    held = holder(found)
    del found
    assert first not in places(memory, 100, 1)
    del held
    assert places(memory, 100) == [first]


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300), st.booleans()), max_size=30))
def test_contents_stay_as_they_were_written_while_they_are_viewed(most, steps):
    """Up to four are held; each step drops one of them and borrows another, of which a part is held or all."""
    memory, held = LentMemory(most), {}
    for number, (at, size, part) in enumerate(steps):
        held.pop(at, None)
        found = memory.borrow(size)
        assert found.shape == (size,) and found.dtype == np.uint8 and found.flags.writeable
        found[:] = number
        held[at] = (number, found[size // 2 :] if part else found)
        del found
        assert all((content == written).all() for written, content in held.values())
        assert len(memory._blocks) <= most


def test_as_many_blocks_are_kept_as_were_said():
    memory = LentMemory(2)
    lent = [memory.borrow(100) for _ in range(3)]
    kept = [place(each) for each in lent[:2]]
    lent.clear()
    again = [memory.borrow(100) for _ in range(3)]
    assert [place(each) for each in again[:2]] == kept and len(memory._blocks) == 2


def test_a_block_is_lent_for_what_fits_it_and_replaced_by_a_larger_one():
    memory = LentMemory(1)
    (first, again) = places(memory, 800, 900)
    assert first == again, "it has an eighth more"
    (larger,) = places(memory, 901)
    assert [block.nbytes for block, _ in memory._blocks] == [901 + 112]
    assert places(memory, 1, 1013) == [larger, larger]


def test_of_two_free_blocks_that_which_fits_is_lent():
    memory = LentMemory(2)
    lent = [memory.borrow(size) for size in (8, 800)]
    small, large = map(place, lent)
    lent.clear()
    lent.append(memory.borrow(800))
    assert place(lent[0]) == large and places(memory, 8) == [small] and len(memory._blocks) == 2
