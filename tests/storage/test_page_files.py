"""Page files: several folders, what is refused and how it is called, direct I/O where there is any."""

import builtins
import ctypes
import errno
import json
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.errors import InputError
from marius_oac.kernels.cpu import async_io
from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.kernels.cpu.pages import SLOTS_PER_SEGMENT
from marius_oac.storage.disk.files import HEADER_BYTES, LISTING, Listing, PageFiles
from marius_oac.storage.reserved import reserve

PAGE = 8192


def pages(count, seed=0):
    """Pages of random bytes that start where direct I/O wants them to."""
    memory = np.frombuffer(reserve(count * PAGE), np.uint8, count * PAGE)
    memory[:] = np.random.default_rng(seed).integers(0, 256, count * PAGE)
    return memory.reshape(count, PAGE)


def addresses(memory):
    return memory.ctypes.data + np.arange(len(memory)) * PAGE


def write_and_read(files, slots):
    slots = np.array(slots, np.int64)
    files.grow(SLOTS_PER_SEGMENT * (1 + int(slots.max()) // SLOTS_PER_SEGMENT))
    memory, back = pages(slots.size), pages(slots.size, 1)
    requests = files.write(slots, addresses(memory)), files.read(slots, addresses(back))
    np.testing.assert_array_equal(back, memory)
    return requests


def open_files(folder, listing, **options):
    for name in listing.files if options.get("create") else ():
        (folder / name).parent.mkdir(exist_ok=True)
    return PageFiles(folder, listing, options.pop("io", "direct"), 4, **options)


def descriptors():
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("io", ["direct", "buffered"])
def test_what_was_written_is_there_when_the_files_are_opened_again(tmp_path, io):
    listing, slots = Listing.new(PAGE), np.array([0, 1, 2, 300, 511])
    before = descriptors()
    with open_files(tmp_path, listing, io=io, create=True) as files:
        assert write_and_read(files, slots) == (3, 3)
        files.sync()
    with open_files(tmp_path, listing, io=io, writable=False) as files:
        back = pages(5, 1)
        files.read(slots, addresses(back))
        np.testing.assert_array_equal(back, pages(5))
        with pytest.raises(OSError):
            files.write(slots, addresses(back))
    assert descriptors() == before
    files.close()


def test_segments_go_round_the_folders(tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "one")]
    listing = Listing.new(PAGE, folders)
    assert len(set(listing.files)) == 3 and all(os.path.isabs(name) for name in listing.files)
    with open_files(tmp_path / "run", listing, create=True) as files:
        write_and_read(files, range(0, 5 * SLOTS_PER_SEGMENT, 100))
        sizes = [path.stat().st_size for path in map(type(tmp_path), listing.files)]
        segment = SLOTS_PER_SEGMENT * PAGE
        assert sizes == [HEADER_BYTES + 2 * segment, HEADER_BYTES + 2 * segment, HEADER_BYTES + segment]
        assert [str(files.path_of(number * SLOTS_PER_SEGMENT)) for number in range(4)] == [
            *listing.files,
            listing.files[0],
        ]


def test_a_run_that_was_moved_finds_the_files_beside_its_listing(tmp_path):
    listing = Listing.new(PAGE)
    with open_files(tmp_path / "here", listing, create=True) as files:
        write_and_read(files, [0])
    (tmp_path / "here").rename(tmp_path / "there")
    with open_files(tmp_path / "there", listing) as files:
        files.grow(SLOTS_PER_SEGMENT)
        memory = pages(1, 1)
        files.read(np.array([0]), addresses(memory))
        np.testing.assert_array_equal(memory, pages(1))


def test_growing_reserves_the_room_and_never_shrinks(tmp_path):
    with open_files(tmp_path, Listing.new(PAGE), create=True) as files:
        path = files.path_of(0)
        for slots, expected in ((256, 256), (512, 512), (256, 512)):
            files.grow(slots)
            assert path.stat().st_size == HEADER_BYTES + expected * PAGE
        assert path.stat().st_blocks * 512 >= 512 * PAGE


def test_listings_come_back(tmp_path):
    listing = Listing.new(PAGE, [tmp_path / "a", tmp_path / "b"])
    (tmp_path / LISTING).write_text(listing.dump())
    assert Listing.load(tmp_path / LISTING) == listing
    assert len({listing.header(0), listing.header(1), Listing.new(PAGE).header(0)}) == 3
    assert len(listing.header(0)) == HEADER_BYTES


def test_any_changed_byte_of_a_listing_is_found(tmp_path):
    listing = Listing.new(PAGE)
    with open_files(tmp_path, listing, create=True):
        content, path = listing.dump().encode(), tmp_path / LISTING
        for place in range(len(content)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            try:
                found = Listing.load(path)
                if found != listing:
                    with open_files(tmp_path, found):
                        pytest.fail(f"byte {place} was changed and nothing was said")
            except InputError as error:
                assert str(tmp_path) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("content, message", [
    (None, "page files are missing: No such file"),
    (b"", "is damaged"),
    (b"[1]", "is damaged"),
    (b"\xff\xfe", "is damaged"),
    (b'{"format": "marius-oac pages"}', "is damaged"),
    ({"format": "other"}, "is damaged"),
    ({"version": 2}, "format version 2, not 1"),
    ({"identity": "../x"}, "identity '../x' is none"),
    ({"page_bytes": 0}, "page_bytes 0 is no multiple of 4096"),
    ({"page_bytes": 4097}, "page_bytes 4097 is no multiple of 4096"),
    ({"page_bytes": 2**62}, "page_bytes 4611686018427387904 is no multiple"),
    ({"files": []}, "0 files are listed"),
    ({"files": ["../../other.pages"]}, "files.0 '../../other.pages' is no name of a page file"),
    ({"files": None}, "is damaged"),
])  # fmt: skip
def test_a_listing_that_is_none_is_named(tmp_path, content, message):
    path = tmp_path / LISTING
    if isinstance(content, dict):
        content = json.dumps(json.loads(Listing.new(PAGE).dump()) | content).encode()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        Listing.load(path)
    assert caught.value.where == str(path)


def broken(path, how):
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        os.truncate(path, HEADER_BYTES - 1)
    elif how == "of another run":
        path.write_bytes(Listing.new(PAGE).header(1).ljust(HEADER_BYTES))
    elif how == "its neighbour":
        path.write_bytes(content.replace(b'"number": 1', b'"number": 0'))
    elif how == "of another version":
        path.write_bytes(content.replace(b'"version": 1', b'"version": 2'))
    elif how == "a bit":
        path.write_bytes(content[:4095] + bytes([content[4095] ^ 16]) + content[4096:])


@pytest.mark.parametrize("how, message", [
    ("missing", "No such file"),
    ("a folder", "Is a directory"),
    ("empty", "is not a page file of this run"),
    ("cut", "is not a page file of this run"),
    ("of another run", "is not a page file of this run"),
    ("its neighbour", "is not a page file of this run"),
    ("of another version", "is not a page file of this run"),
    ("a bit", "is not a page file of this run"),
])  # fmt: skip
def test_a_file_that_is_not_the_runs_is_named(tmp_path, how, message):
    listing = Listing.new(PAGE, [tmp_path / "a", tmp_path / "b"])
    open_files(tmp_path, listing, create=True).close()
    before, threads = descriptors(), threading.active_count()
    path = type(tmp_path)(listing.files[1])
    broken(path, how)
    with pytest.raises(InputError, match=message) as caught:
        open_files(tmp_path, listing)
    assert caught.value.where == str(path) and "\n" not in str(caught.value)
    assert (descriptors(), threading.active_count()) == (before, threads)


def test_a_file_that_was_cut_is_read_up_to_where_it_ends(tmp_path):
    listing = Listing.new(PAGE)
    with open_files(tmp_path, listing, create=True) as files:
        write_and_read(files, range(10))
        path = files.path_of(0)
    os.truncate(path, HEADER_BYTES + 5 * PAGE + 4096)
    with open_files(tmp_path, listing) as files:
        memory = pages(10)
        files.read(np.arange(5), addresses(memory)[:5])
        with pytest.raises(OSError, match="the file ends before the page does") as caught:
            files.read(np.arange(3, 8), addresses(memory)[3:8])
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))


@pytest.mark.parametrize("io", ["direct", "buffered"])
@pytest.mark.parametrize("room", [0, 4096, PAGE, PAGE + 4096])
def test_a_write_that_is_cut_short_is_told_with_its_reason(tmp_path, io, room):
    """The limit on the size of files lets a part of a page be written, as a disk does that fills up: what is left
    to do is tried, and the system says why it can't be done."""
    listing, memory = Listing.new(PAGE), pages(5)
    with open_files(tmp_path, listing, io=io, create=True) as files:
        write_and_read(files, range(5))  # kernels are compiled, and kept in a file, before there is a limit
        files.submit(files.write, np.arange(5), addresses(memory)[::-1].copy()).result()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + 2 * PAGE + room, limits[1]))
        try:
            for write in (files.write, lambda *args: files.submit(files.write, *args).result()):
                with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as caught:
                    write(np.arange(5), addresses(memory))
                assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(files.path_of(0)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        back, whole = pages(5, 1), 2 + room // PAGE
        files.read(np.arange(5), addresses(back))
        np.testing.assert_array_equal(back[:whole], memory[:whole])


@pytest.mark.parametrize("parts", [[1], [512, 4096, 1], [PAGE + 512, 100, PAGE]])
def test_a_write_that_is_cut_short_goes_on_where_it_stood(tmp_path, monkeypatch, parts):
    cuts, memory = iter(parts), pages(5)

    def short(descriptor, vectors, count, offset):
        room, content = next(cuts, 5 * PAGE), b""
        for address, length in np.reshape((ctypes.c_int64 * (2 * int(count))).from_address(vectors), (-1, 2)):
            content += ctypes.string_at(int(address), int(length))
        return os.pwrite(descriptor, content[:room], int(offset))

    monkeypatch.setattr(page_kernels, "pwritev", short)
    monkeypatch.setattr(page_kernels, "atomics", SimpleNamespace(address_of=lambda array: array.ctypes.data))
    transfer = getattr(page_kernels.transfer, "py_func", page_kernels.transfer)
    vectors, counts = np.empty(2 * page_kernels.MOST_PAGES_AT_ONCE, np.int64), np.zeros(1, np.int64)
    with open(tmp_path / "file", "wb") as file:
        descriptors = np.array([file.fileno()], np.int64)
        rest = (descriptors, np.arange(5), addresses(memory), PAGE, HEADER_BYTES, vectors, counts)
        assert transfer(True, *rest) == (-1, 0)
    assert (tmp_path / "file").read_bytes()[HEADER_BYTES:] == memory.tobytes()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_can_not_be_written_is_named_and_nothing_is_left(tmp_path, monkeypatch, number):
    listing, real = Listing.new(PAGE, [tmp_path / "a", tmp_path / "b"]), builtins.open

    def refusing(path, mode="r", *arguments, **options):
        if mode == "xb" and str(path).startswith(str(tmp_path / "b")):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, mode, *arguments, **options)

    before = descriptors()
    monkeypatch.setattr(builtins, "open", refusing)
    with pytest.raises(InputError, match=os.strerror(number)) as caught:
        open_files(tmp_path, listing, create=True)
    assert caught.value.where == listing.files[1]
    assert descriptors() == before
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_is_none_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="page file: Not a directory") as caught:
        PageFiles(tmp_path, Listing.new(PAGE, [tmp_path / "file"]), "direct", 4, create=True)
    assert str(tmp_path / "file") in caught.value.where


def test_files_that_are_there_are_not_overwritten(tmp_path):
    listing = Listing.new(PAGE)
    open_files(tmp_path, listing, create=True).close()
    before = (tmp_path / listing.files[0]).read_bytes()
    with pytest.raises(InputError, match="File exists"):
        open_files(tmp_path, listing, create=True)
    assert (tmp_path / listing.files[0]).read_bytes() == before


def without_direct(monkeypatch, number):
    """A file system that has no direct I/O says so when a file is opened."""
    real = os.open

    def refusing(path, flags, *arguments, **options):
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)


def test_where_there_is_no_direct_io_one_line_says_so(tmp_path, monkeypatch):
    without_direct(monkeypatch, errno.EINVAL)
    said = []
    with open_files(tmp_path, Listing.new(PAGE), create=True, warn=said.append) as files:
        assert write_and_read(files, [0, 1, 300]) == (2, 2)
    assert len(said) == 1 and str(tmp_path) in said[0] and "no direct I/O" in said[0] and "buffered" in said[0]
    with open_files(tmp_path, files.listing, io="buffered", warn=said.append):
        assert len(said) == 1


def test_another_error_of_opening_is_no_lack_of_direct_io(tmp_path, monkeypatch):
    without_direct(monkeypatch, errno.EMFILE)
    with pytest.raises(InputError, match="Too many open files"):
        open_files(tmp_path, Listing.new(PAGE), create=True, warn=lambda line: pytest.fail(line))


def test_no_room_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    with open_files(tmp_path, Listing.new(PAGE, [tmp_path / "a", tmp_path / "b"]), create=True) as files:
        files.grow(SLOTS_PER_SEGMENT)

        def full(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
            patch.setattr(os, "posix_fallocate", full)
            files.grow(2 * SLOTS_PER_SEGMENT)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, files.listing.files[1])
        write_and_read(files, [SLOTS_PER_SEGMENT])  # there is room again


def test_jobs_cover_every_page_once_and_use_all_threads(tmp_path):
    with PageFiles(tmp_path, Listing.new(PAGE), "buffered", 6, create=True) as files:
        for count in (0, 1, 7, 8, 9, 47, 48, 49, 767, 768, 769, 5000):
            parts = files.jobs(count)
            assert [place for part in parts for place in range(count)[part]] == list(range(count))
            assert all(1 <= part.stop - part.start <= 128 for part in parts)
            assert len(parts) >= min(6, count // 8)


def test_threads_are_bound_before_their_first_request_and_end(tmp_path):
    bound, before = [], threading.active_count()
    with PageFiles(tmp_path, Listing.new(PAGE), "buffered", 3, create=True, bind=bound.append) as files:
        barrier = threading.Barrier(3)
        for each in [files.submit(barrier.wait, 30) for _ in range(3)]:
            each.result()
        assert bound == ["io"] * 3
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_its_threads_give_way_to_all_others(tmp_path):
    with open_files(tmp_path, Listing.new(PAGE), create=True) as files:
        theirs = files.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert theirs > own or own == 19


def test_many_threads_at_once_move_what_is_theirs(tmp_path):
    with open_files(tmp_path, Listing.new(PAGE, [tmp_path / "a", tmp_path / "b"]), create=True) as files:
        files.grow(4 * SLOTS_PER_SEGMENT)

        def work(rank):
            slots = np.arange(rank, 1000, 4)
            for number in range(5):
                memory, back = pages(slots.size, 10 * rank + number), pages(slots.size)
                files.write(slots, addresses(memory))
                files.read(slots, addresses(back))
                np.testing.assert_array_equal(back, memory)

        with ThreadPoolExecutor(4) as threads:
            for each in [threads.submit(work, rank) for rank in range(4)]:
                each.result()


def test_where_the_system_has_no_queue_left_requests_are_made_one_by_one(tmp_path, monkeypatch):
    def none_left():
        raise OSError(errno.EAGAIN, "none left")

    with PageFiles(tmp_path, Listing.new(PAGE), "direct", 256, create=True) as files:
        monkeypatch.setattr(async_io, "take", none_left)
        files.grow(SLOTS_PER_SEGMENT)
        page, slots = reserve(3 * PAGE), np.arange(3)
        memory = np.frombuffer(page, np.uint8)
        memory[:] = np.arange(memory.size) % 251
        at = memory.ctypes.data + np.arange(3) * PAGE
        assert files.submit(files.write, slots, at).result() == 1
        memory[:] = 0
        assert files.submit(files.read, slots, at).result() == 1
        np.testing.assert_array_equal(memory, np.arange(memory.size) % 251)


@pytest.mark.skipif(not async_io.supported(), reason="no asynchronous I/O here")
def test_asynchronous_requests_move_what_single_ones_move(tmp_path):
    with PageFiles(tmp_path, Listing.new(PAGE), "direct", 16, create=True) as files:
        files.grow(SLOTS_PER_SEGMENT)
        slots = np.sort(np.random.default_rng(0).choice(SLOTS_PER_SEGMENT, 100, replace=False))
        memory = np.frombuffer(reserve(100 * PAGE), np.uint8)
        memory[:] = np.random.default_rng(1).integers(0, 256, memory.size, np.uint8)
        at, expected = memory.ctypes.data + np.arange(100) * PAGE, memory.copy()
        written = files.submit(files.write, slots, at).result()
        assert written == np.count_nonzero(np.diff(slots, prepend=-9) != 1)
        memory[:] = 0
        assert files.read(slots, at) == written  # in this thread, which has no queue
        np.testing.assert_array_equal(memory, expected)
        memory[:] = 0
        files.submit(files.read, slots, at).result()
        np.testing.assert_array_equal(memory, expected)
        os.truncate(next(tmp_path.glob("*.pages")), 8192)
        with pytest.raises(OSError, match="ends before"):
            files.submit(files.read, slots, at).result()
        assert len(files._contexts) == 1
    assert not files._contexts


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_that_lacks_slots_is_the_one_that_is_named(tmp_path, number):
    """Of two whose segments take turns."""
    listing, slots = Listing.new(PAGE, [tmp_path / "a", tmp_path / "b"]), np.arange(4) * SLOTS_PER_SEGMENT
    with open_files(tmp_path, listing, create=True) as files:
        files.grow(4 * SLOTS_PER_SEGMENT)
        files.check_slots(slots)
    os.truncate(listing.files[number], HEADER_BYTES + PAGE)
    with open_files(tmp_path, listing) as files, pytest.raises(InputError, match="refers to slot 768") as caught:
        files.check_slots(slots)
    assert caught.value.where == listing.files[number]


@pytest.mark.skipif(not async_io.supported(), reason="no asynchronous I/O here")
def test_queues_are_used_again_and_a_process_that_is_forked_has_none(monkeypatch):
    monkeypatch.setattr(async_io, "_IDLE", idle := [])
    taken, closed = [async_io.take() for _ in range(6)], []
    monkeypatch.setattr(async_io.Context, "close", lambda context: closed.append(context))
    for each in taken:
        async_io.give_back(each)
    assert (idle, closed) == (taken[:4], taken[4:])
    assert async_io.take() is taken[3] and idle == taken[:3]
    monkeypatch.undo()
    for each in taken:
        each.close()
    async_io.give_back(async_io.take())
    if not (child := os.fork()):
        os._exit(len(async_io._IDLE))
    assert async_io._IDLE and os.waitpid(child, 0)[1] == 0
