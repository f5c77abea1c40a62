"""Operations on whole pages: checksums that miss nothing, copies that are not torn, requests that are merged."""

import errno
import os
import time

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.storage import kernels, page_kernels
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.page_kernels import MOST_PAGES_AT_ONCE, SHORT_READ, SLOTS_PER_SEGMENT
from tests.storage.torture import together
from tests.threads import in_thread, joined

JIT = not numba.config.DISABLE_JIT
PAGE = 4096
MASK = 2**64 - 1


@pytest.fixture(autouse=True)
def _wrapping():
    """Without the JIT, NumPy warns where a product of the checksum wraps round, as it should."""
    with np.errstate(over="ignore"):
        yield


def checksum(page, number=0):
    return int(page_kernels.checksum(page.ctypes.data, page.nbytes, number))


def random_page(num_bytes=PAGE, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_bytes).astype(np.uint8)


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


def last_steps_undone(found, seed, lanes):
    """The lane that stands at None, from the checksum and the other three; see `page_kernels.checksum`."""
    prime_2 = int(page_kernels._PRIME_2)
    inverse = pow(prime_2, -1, 1 << 64)

    def step_undone(value):
        return rotated(value, 33) * inverse & MASK

    total = found
    for _ in range(3):
        total = found ^ total >> 29
    total = step_undone(total)
    for lane in (3, 2, 1):
        if lanes[lane] is None:
            forward = rotated((lanes[0] ^ seed) * prime_2 & MASK)
            for before in range(1, lane):
                forward = rotated((forward ^ lanes[before]) * prime_2 & MASK)
            return total ^ forward
        total = step_undone(total ^ lanes[lane])
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


class Files:
    """Page files with recognisable pages, and a place in memory to move them to."""

    def __init__(self, folder, number, slots_in_each, header=4096):
        self.paths, self.header = [folder / str(each) for each in range(number)], header
        for path in self.paths:
            path.write_bytes(b"\xff" * (header + slots_in_each * PAGE))
        self.descriptors = np.array([os.open(path, os.O_RDWR) for path in self.paths], np.int64)

    def close(self):
        for descriptor in self.descriptors:
            os.close(int(descriptor))

    def place(self, slot):
        """(file, offset), from the documentation: segments go round the files."""
        segment, within = divmod(slot, SLOTS_PER_SEGMENT)
        row, file = divmod(segment, len(self.paths))
        return file, self.header + (row * SLOTS_PER_SEGMENT + within) * PAGE

    def move(self, write, slots, addresses):
        counts, vectors = np.zeros(1, np.int64), np.empty(2 * MOST_PAGES_AT_ONCE, np.int64)
        slots, addresses = np.array(slots, np.int64), np.array(addresses, np.int64)
        done = page_kernels.transfer(write, self.descriptors, slots, addresses, PAGE, self.header, vectors, counts)
        return *(int(each) for each in done), int(counts[0])


@pytest.fixture
def make_files(tmp_path):
    made = []

    def make(*arguments):
        made.append(Files(tmp_path, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def requests_for(slots):
    """How many calls there must be: runs of neighbours in one segment, at most so many pages each."""
    count, run = 0, 0
    for before, slot in zip([None, *slots], slots, strict=False):
        follows = before is not None and slot == before + 1 and slot % SLOTS_PER_SEGMENT and run < MOST_PAGES_AT_ONCE
        count, run = (count, run + 1) if follows else (count + 1, 1)
    return count


@pytest.mark.parametrize("number", [1, 2, 3])
def test_pages_go_to_their_places_in_as_few_requests_as_can_be(make_files, number):
    files, generator = make_files(number, 3 * SLOTS_PER_SEGMENT), np.random.default_rng(0)
    slots = sorted({*range(50, 190), *range(250, 262), 400, 511, 512, *generator.choice(760, 40).tolist()})
    memory, order = random_page(len(slots) * PAGE), generator.permutation(len(slots))
    addresses = memory.ctypes.data + order * PAGE
    assert files.move(True, slots, addresses) == (-1, 0, requests_for(slots))
    contents = [path.read_bytes() for path in files.paths]
    pages = memory.reshape(-1, PAGE)
    for slot, where in zip(slots, order, strict=True):
        file, offset = files.place(slot)
        assert contents[file][offset : offset + PAGE] == pages[where].tobytes()
    total = sum(content.count(b"\xff" * PAGE) for content in contents)
    assert total >= number - 1  # untouched ones are there
    assert all(content[:4096] == b"\xff" * 4096 for content in contents), "the header was overwritten"
    back = np.zeros_like(memory)
    assert files.move(False, slots, back.ctypes.data + order * PAGE) == (-1, 0, requests_for(slots))
    np.testing.assert_array_equal(back, memory)


def test_no_pages_are_no_request(make_files):
    assert make_files(1, 1).move(False, [], []) == (-1, 0, 0)


def test_a_file_that_ends_is_found_at_its_page(make_files):
    files = make_files(1, 10)
    memory = np.zeros(20 * PAGE, np.uint8)
    addresses = memory.ctypes.data + np.arange(20) * PAGE
    assert files.move(False, range(10), addresses[:10])[:2] == (-1, 0)
    for lost, page in ((0, 10), (1, 9), (PAGE, 9), (PAGE + 5, 8)):
        os.truncate(files.paths[0], files.header + 10 * PAGE - lost)
        assert files.move(False, range(12), addresses[:12])[:2] == (page, SHORT_READ)
    files.paths[0].write_bytes(b"")
    assert files.move(False, [0], addresses[:1])[:2] == (0, SHORT_READ)


def test_an_error_of_the_system_comes_with_its_page_and_number(make_files):
    files = make_files(2, SLOTS_PER_SEGMENT)
    memory = np.zeros(4 * PAGE, np.uint8)
    addresses = memory.ctypes.data + np.arange(4) * PAGE
    good = files.descriptors.copy()
    files.descriptors = np.array([good[0], 10**6])
    slots = [3, 4, SLOTS_PER_SEGMENT, SLOTS_PER_SEGMENT + 1]
    for write in (False, True):
        assert files.move(write, slots, addresses)[:2] == (2, errno.EBADF)
    read_only = os.open(files.paths[0], os.O_RDONLY)
    files.descriptors = np.array([read_only, good[1]])
    assert files.move(True, slots, addresses)[:2] == (0, errno.EBADF)
    assert files.move(False, slots, addresses)[:2] == (-1, 0)
    os.close(read_only)
    files.descriptors = good
    assert files.move(False, [0], [8])[:2] == (0, errno.EFAULT)


def test_calls_that_move_less_than_asked_are_gone_on_with(make_files):
    """Here because of a limit on the size of files."""
    resource = pytest.importorskip("resource")
    files = make_files(1, 0)
    memory = random_page(8 * PAGE)
    addresses = memory.ctypes.data + np.arange(8) * PAGE
    limit = files.header + 3 * PAGE

    def child():
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return files.move(True, range(8), addresses)[:2] == (3, errno.EFBIG)

    files.move(True, [0], addresses[:1])  # compiled before the fork
    pid = os.fork()
    if not pid:
        os._exit(0 if child() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert files.paths[0].read_bytes()[files.header :] == memory.tobytes()[: 3 * PAGE]


@settings(max_examples=60 if JIT else 20, deadline=None)
@given(
    rows=st.sets(st.integers(0, 300), max_size=40).map(lambda rows: np.array(sorted(rows), np.int64)),
    per_page=st.integers(1, 9),
    first=st.integers(0, 50),
)
def test_rows_are_found_in_their_frames(rows, per_page, first):
    pages = np.empty(rows.size, np.int64)
    expected = sorted({first + row // per_page for row in rows.tolist()})
    assert pages[: page_kernels.pages_of(rows, per_page, first, pages)].tolist() == expected
    frame_of = np.zeros(400, np.int32)
    frame_of[expected] = np.random.default_rng(0).permutation(len(expected)) + 1
    offsets, dirty = np.empty(rows.size, np.int64), np.zeros(400, np.uint8)
    page_kernels.locate(rows, per_page, first, frame_of, PAGE, 24, offsets)
    assert offsets.tolist() == [
        (int(frame_of[first + row // per_page]) - 1) * PAGE + row % per_page * 24 for row in rows.tolist()
    ]
    page_kernels.mark(rows, per_page, first, frame_of, dirty)
    assert np.flatnonzero(dirty).tolist() == sorted(int(frame_of[page]) - 1 for page in expected)
