"""Copies of pages on their way to the disk: not torn, no lock bit, no number that is none, nothing behind the rows."""

import time

import numpy as np
import pytest

from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.kernels.cpu import rows as kernels
from marius_oac.storage.contract import RowLayout
from tests.storage.pages import JIT, PAGE, checksum
from tests.storage.torture import together
from tests.threads import in_thread, joined

pytestmark = pytest.mark.usefixtures("wrapping")


class Page:
    """A page of rows in memory, and a copy of it."""

    def __init__(self, layout, rows_per_page=None, page_bytes=PAGE):
        self.layout, self.page_bytes = layout, page_bytes
        self.rows = rows_per_page or page_bytes // layout.row_bytes
        self._memory, self._copy = np.zeros(page_bytes + 64, np.uint8), np.full(page_bytes + 64, 0xEE, np.uint8)
        self.bytes, self.copied = self._memory[:page_bytes], self._copy[:page_bytes]
        self.offsets = np.arange(self.rows) * layout.row_bytes

    def table(self, copied=False):
        return self.layout.table_at((self.copied if copied else self.bytes).ctypes.data, stride=1)

    def write(self, values, timestamp):
        kernels.restore(self.table(), self.offsets, values, np.full(self.rows, timestamp))

    def copy(self):
        page_kernels.copy_page(
            self.bytes.ctypes.data, self.copied.ctypes.data, self.rows, self.layout.row_bytes, self.page_bytes
        )

    def read_copy(self):
        into, timestamps = np.empty((self.rows, self.layout.width), np.float32), np.empty(self.rows, np.int64)
        kernels.read(self.table(copied=True), self.offsets, into, timestamps)
        return into, timestamps


@pytest.mark.parametrize("layout", [RowLayout(5, 2), RowLayout(7, 3, "bfloat16"), RowLayout(100, 100)], ids=str)
def test_a_copy_has_the_rows_and_nothing_behind_them(layout):
    page = Page(layout)
    values = np.random.default_rng(0).integers(-50, 50, (page.rows, layout.width)).astype(np.float32)
    page.write(values, 17)
    page.bytes[page.rows * layout.row_bytes :] = 0xAA  # what lies there must not reach the disk
    page.copy()
    found, timestamps = page.read_copy()
    np.testing.assert_array_equal(found, values)
    assert (timestamps == 17).all()
    assert not page.copied[page.rows * layout.row_bytes :].any()
    assert (page._copy[PAGE:] == 0xEE).all(), "written beyond the page"


def words_of(page, copied=False):
    """The timestamp words of a page's rows."""
    return (page.copied if copied else page.bytes).view(np.int64)[page.offsets // 8]


def test_a_copy_waits_for_who_holds_a_row():
    """A writer has written half of a row when the copy comes to it, and goes on when it has had time to go wrong."""
    layout = RowLayout(40, 10)
    page, second, held = Page(layout, 2), np.array([layout.row_bytes]), np.zeros(1, np.int64)
    page.write(np.ones((2, 50), np.float32), 4)
    page.copy()  # compiled by now
    page.copied[:] = 0xEE
    kernels.lock_rows(page.table(), second, np.empty((1, 50), np.float32), held)
    page.bytes[layout.row_bytes + 8 :][:100].view(np.float32)[:] = 2
    thread, outcome = in_thread(page.copy)
    try:
        while words_of(page, copied=True)[0] != words_of(page)[0]:
            assert thread.is_alive()  # row 0 is being copied; nobody holds it
        clock = time.pthread_getcpuclockid(thread.ident)
        enough = time.clock_gettime(clock) + 0.02  # seconds of its own: it looks at the word thousands of times
        while thread.is_alive() and time.clock_gettime(clock) < enough:
            pass
        assert thread.is_alive(), "it did not wait"
    finally:
        kernels.unlock_changed(page.table(), second, np.full((1, 50), 2, np.float32), held, 5)
        thread.join()
    assert joined(thread, outcome) is None
    found, timestamps = page.read_copy()
    assert (found[0] == 1).all() and (found[1] == 2).all()
    assert timestamps.tolist() == [4, 5] and not (words_of(page, copied=True) & 1).any()


FAR_APART = [100_000, -100_000]
"""Numbers of a long row: memcpy begins at either end, and takes the very ends when it likes to."""


def changed_while_copied(page, floats, copied):
    """Writes two numbers of a row that is being copied; whether the copy was between them then."""
    word = page.bytes[:8].view(np.int64)
    while not (copied[FAR_APART] == 1).any():
        pass
    word[0] += 1  # the lock bit
    floats[FAR_APART] = 2
    word[0] += 1  # without it, the next version
    return not (copied[FAR_APART] == 1).all()


@pytest.mark.skipif(not JIT, reason="without the JIT a copy is one call")
def test_a_row_that_changed_while_it_was_copied_is_copied_again():
    layout, size = RowLayout(16_000_000, 0), 64_000_256  # bytes: it takes milliseconds
    page = Page(layout, 1, size)
    floats, copied = (each[8:].view(np.float32)[: layout.width] for each in (page.bytes, page.copied))
    page.copy()
    for _ in range(100):
        floats[:], copied[:] = 1, 0
        thread, outcome = in_thread(page.copy)
        between = changed_while_copied(page, floats, copied)
        assert joined(thread, outcome) is None
        found = copied[FAR_APART]
        assert (found == 2).all() or (not between and (found == 1).all()), "a torn row"
        if between:
            return
    raise AssertionError("this thread never ran while the other one copied")


def test_a_copy_under_writers_has_no_torn_row_and_no_lock():
    layout = RowLayout(12_000 if JIT else 40, 4_000 if JIT else 10)  # long, so that copies and writes do overlap
    page = Page(layout, 2, 32 * PAGE)
    rounds = 6000 if JIT else 30

    def writer(rank):
        def run():
            values = np.empty((page.rows, layout.width), np.float32)
            for number in range(rounds):
                values.fill(2 * number + rank)
                kernels.commit(page.table(), page.offsets, values, 2 * number + rank)

        return run

    def reader():
        last = -1
        for _ in range(rounds):
            page.copy()
            words = page.copied.view(np.int64)[page.offsets // 8]
            assert not (words & 1).any(), "a lock bit"
            found, timestamps = page.read_copy()
            assert (found.min(axis=1) == found.max(axis=1)).all(), "a torn row"
            written = timestamps > 0
            np.testing.assert_array_equal(found[written, 0], timestamps[written])
            assert timestamps.min() >= last
            last = timestamps.min()

    together(writer(0), writer(1), reader)


def shapes_of(layout, first_page=0):
    narrow = layout.value_dtype == "bfloat16"
    state = layout.state_offset if narrow else 8 + 4 * layout.dimension
    return [first_page, PAGE // layout.row_bytes, layout.row_bytes, layout.dimension, narrow, state, layout.state_width]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_found_wherever_it_stands(dtype, value):
    layouts = [RowLayout(3, 2), RowLayout(5, 3, dtype)]
    shapes = np.array([shapes_of(layouts[0]), shapes_of(layouts[1], 10)], np.int64)
    page, clean, sums = Page(layouts[1]), Page(layouts[0]), np.zeros(2, np.uint64)
    target = np.zeros(2 * PAGE, np.uint8)
    clean.write(np.full((clean.rows, 5), 3.4e38, np.float32), 1)
    largest = np.full((page.rows, 8), 3.3e38 if dtype == "bfloat16" else 3.4e38, np.float32)

    def found(values, timestamp=5):
        page.write(values, timestamp)
        sources = np.array([clean.bytes.ctypes.data, page.bytes.ctypes.data])
        first = page_kernels.copy_pages(sources, target.ctypes.data, PAGE, np.array([9, 12]), shapes, sums)
        assert sums.tolist() == [checksum(target[:PAGE], 9), checksum(target[PAGE:], 2)]
        return first

    assert found(largest) == found(-largest) == -1
    assert found(largest, 2**61) == -1  # the word's bits are no number
    for row in (0, page.rows // 2, page.rows - 1):
        for column in range(8):
            values = np.zeros((page.rows, 8), np.float32)
            values[row, column] = value
            assert found(values) == 12


@pytest.mark.parametrize("word", [1, -2])
def test_a_word_that_no_copy_has_is_found_wherever_it_stands(word):
    """The lock bit, or a number below 0: whoever read such a row would wait forever, or trust its timestamp."""
    layouts = [RowLayout(3, 2), RowLayout(5, 3, "bfloat16")]
    shapes = np.array([shapes_of(layouts[0]), shapes_of(layouts[1], 10)], np.int64)
    pages = [Page(layout) for layout in layouts]
    for page in pages:
        page.write(np.zeros((page.rows, page.layout.width), np.float32), 7)
    addresses, numbers = np.array([page.bytes.ctypes.data for page in pages]), np.array([9, 12])
    assert page_kernels.first_locked(addresses, numbers, shapes) == -1
    for place, page in enumerate(pages):
        for row in (0, page.rows - 1):
            at = page.bytes[row * page.layout.row_bytes :][:8].view(np.int64)
            good, at[0] = at[0], word
            assert page_kernels.first_locked(addresses, numbers, shapes) == place
            at[0] = good
