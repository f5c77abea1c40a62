"""Checksums of pages: no change of a page goes unseen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu import pages as page_kernels
from tests.storage.pages import JIT, PAGE, checksum, random_page

pytestmark = pytest.mark.usefixtures("wrapping")
MASK = 2**64 - 1


@pytest.mark.parametrize("content", ["zeros", "random", "rows"])
def test_every_flipped_bit_changes_the_checksum(content):
    page = {"zeros": np.zeros(PAGE, np.uint8), "random": random_page()}.get(content)
    if page is None:
        page = np.ascontiguousarray(np.random.default_rng(1).normal(size=PAGE // 4), np.float32).view(np.uint8)
    expected = checksum(page, 7)
    bits = range(PAGE * 8) if JIT else range(0, PAGE * 8, 509)
    for bit in bits:
        page[bit // 8] ^= 1 << bit % 8
        assert checksum(page, 7) != expected
        page[bit // 8] ^= 1 << bit % 8
    assert checksum(page, 7) == expected


def test_the_page_number_counts():
    page = random_page()
    for same in (page, np.zeros(PAGE, np.uint8)):
        numbers = [*range(2000 if JIT else 20), 2**31, 2**40, 2**62]
        assert len({checksum(same, number) for number in numbers}) == len(numbers)


def test_words_that_change_places_are_seen():
    page = random_page()
    words, expected = page.view(np.uint64), checksum(page)
    count = words.size if JIT else 12
    for first in range(count):
        for second in (first + 1, first + 4, first + 8, words.size - 1 - first):
            if second < words.size and words[first] != words[second]:
                words[[first, second]] = words[[second, first]]
                assert checksum(page) != expected
                words[[first, second]] = words[[second, first]]
    for shift in (1, 4, 8, 64, PAGE // 16):
        assert checksum(np.roll(words, shift)) != expected
    for half in (page[: PAGE // 2], page[PAGE // 2 :]):  # torn: one half is of another moment
        before = half.copy()
        half[:] = 0
        assert checksum(page) != expected
        half[:] = before


def rotated(value, by=31):
    return (value << by | value >> 64 - by) & MASK


def last_steps_undone(found, seed, thread_pool):
    """The lane that stands at None, from the checksum and the other three; see `cpu.pages.checksum`."""
    prime_2 = int(page_kernels._PRIME_2)
    inverse = pow(prime_2, -1, 1 << 64)

    def step_undone(value):
        return rotated(value, 33) * inverse & MASK

    total = found
    for _ in range(3):
        total = found ^ total >> 29
    total = step_undone(total)
    for lane in (3, 2, 1):
        if thread_pool[lane] is None:
            forward = rotated((thread_pool[0] ^ seed) * prime_2 & MASK)
            for before in range(1, lane):
                forward = rotated((forward ^ thread_pool[before]) * prime_2 & MASK)
            return total ^ forward
        total = step_undone(total ^ thread_pool[lane])
    return total ^ seed


@settings(max_examples=60 if JIT else 15, deadline=None)
@given(data=st.data(), number=st.integers(0, 2**40), words=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_word_follows_from_the_checksum_and_the_other_words(data, number, words, seed):
    """So no two pages that differ in one word alone have the same checksum: each step is undone here."""
    page = random_page(32 * words, seed)
    at = data.draw(st.integers(0, 4 * words - 1))
    found, content = checksum(page, number), [int(word) for word in page.view(np.uint64)]
    prime_1, prime_3 = int(page_kernels._PRIME_1), int(page_kernels._PRIME_3)
    prime_2, inverse = int(page_kernels._PRIME_2), pow(prime_1, -1, 1 << 64)
    start = number * prime_3 & MASK
    starts = [start ^ prime_1, start ^ prime_2, start + prime_1 & MASK, start + prime_2 & MASK]
    lane, ends = at % 4, []
    for each in range(4):
        value = starts[each]
        for word in content[each::4]:
            value = rotated((value ^ word) * prime_1 & MASK)
        ends.append(value)
    ends[lane] = None
    value = last_steps_undone(found, start, ends)
    for word in reversed(content[at + 4 :: 4]):
        value = (rotated(value, 33) * inverse & MASK) ^ word
    before = starts[lane]
    for word in content[lane:at:4]:
        before = rotated((before ^ word) * prime_1 & MASK)
    assert (rotated(value, 33) * inverse & MASK) ^ before == content[at]


def test_the_first_damaged_page_is_found():
    pages = random_page(5 * PAGE).reshape(5, PAGE)
    addresses, numbers = pages.ctypes.data + np.arange(5) * PAGE, np.array([3, 9, 4, 0, 1])
    sums = np.array([checksum(page, number) for page, number in zip(pages, numbers.tolist(), strict=True)], np.uint64)
    assert page_kernels.first_damaged(addresses, PAGE, numbers, sums) == -1
    pages[3, 100] ^= 4
    assert page_kernels.first_damaged(addresses, PAGE, numbers, sums) == 3
    pages[1, 0] ^= 128
    assert page_kernels.first_damaged(addresses, PAGE, numbers, sums) == 1
