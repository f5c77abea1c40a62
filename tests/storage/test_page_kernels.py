"""Pages between files and memory, in requests that are merged, and rows in the frames of their pages."""

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.kernels.cpu.pages import MOST_PAGES_AT_ONCE, SHORT_READ, SLOTS_PER_SEGMENT
from tests.storage.pages import JIT, PAGE, random_page


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
