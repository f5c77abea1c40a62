"""Files written by coroutines: the bytes are right, and neither an error nor Ctrl-C leaves a thread or an open file."""

import asyncio
import errno
import os
import resource
import signal
import threading
from pathlib import Path

import aiofiles.threadpool
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.runtime.files.streaming import write_files, write_npy_files

PATIENCE = 30  # seconds


def open_files():
    return {(file.path, file.fd) for file in psutil.Process().open_files()}


@pytest.fixture(autouse=True)
def nothing_is_left():
    threads, files = threading.active_count(), open_files()
    yield
    assert threading.active_count() == threads and open_files() <= files


@settings(deadline=None, max_examples=25)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=3),
    rows=st.integers(1, 20),
)
def test_files_are_what_numpy_writes(tmp_path_factory, shapes, rows):
    folder = tmp_path_factory.mktemp("files")
    arrays = {f"a{i}": np.random.default_rng(i).random((n, 2 * w), np.float32) for i, (n, w) in enumerate(shapes)}
    halves = {name: array[:, ::2] for name, array in arrays.items()}  # not contiguous

    def blocks():
        for first in range(0, 50, rows):
            yield {name: half[first : first + rows] for name, half in halves.items() if first < len(half)}

    about = {name: (half.shape, np.float32) for name, half in halves.items()}
    write_npy_files(folder, about, blocks())
    assert {path.name for path in folder.iterdir()} == {f"{name}.npy" for name in arrays}
    for name, half in halves.items():
        np.save(folder / "expected", np.ascontiguousarray(half))
        assert (folder / f"{name}.npy").read_bytes() == (folder / "expected.npy").read_bytes()


class Watched:
    """Files that call `before(path, number of the write, from 1)`; `ended` has the path of each write once it has."""

    def __init__(self, monkeypatch, before, closed=lambda: None):
        self.ended, writes, plain_open = [], {}, aiofiles.threadpool.sync_open
        ended = self.ended

        def watched_open(path, *args, **kwargs):
            file = plain_open(path, *args, **kwargs)

            class File(type(file)):
                def write(self, content):
                    writes[path] = writes.get(path, 0) + 1
                    before(path, writes[path])
                    count = super().write(content)
                    ended.append(path)
                    return count

                def close(self):
                    closed()
                    super().close()

            return File(file.detach())

        monkeypatch.setattr(aiofiles.threadpool, "sync_open", watched_open)


def test_the_next_block_is_read_while_files_are_written_side_by_side(tmp_path, monkeypatch):
    a, b = tmp_path / "a", tmp_path / "b"
    both, second = threading.Barrier(2, timeout=PATIENCE), threading.Event()

    def before(path, number):
        if number == 1:
            both.wait()
            assert second.wait(PATIENCE)

    def blocks():
        yield {a: b"1", b: b"1"}
        second.set()
        yield {a: b"2", b: b"2"}

    Watched(monkeypatch, before)
    write_files([a, b], blocks())
    assert a.read_bytes() == b.read_bytes() == b"12"


def test_two_blocks_are_held_at_a_time(tmp_path, monkeypatch):
    """Block n is not asked for before block n - 2 is written, in full."""
    a, b = tmp_path / "a", tmp_path / "b"
    watched = Watched(monkeypatch, lambda path, number: None)

    def blocks():
        for number in range(20):
            assert len(watched.ended) >= 2 * (number - 1)
            yield {a: b"1", b: b"1"}

    write_files([a, b], blocks())
    assert len(watched.ended) == 40


def test_a_full_disk():
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_files([full], ({full: bytes(1 << 20)} for _ in range(3)))
    with pytest.raises(OSError, match="No space left"):
        write_files([full], iter([{full: b"stays in the buffer until it is flushed"}]))


def test_a_file_that_can_not_grow(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(OSError) as caught:
            write_files(paths, ({path: bytes(300_000) for path in paths} for _ in range(10)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.errno == errno.EFBIG


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_files([tmp_path / "a", tmp_path / "none" / "b"], iter([]))


@pytest.mark.parametrize("failing", ["a", "b"])
def test_after_an_error_nothing_is_written_any_more(tmp_path, monkeypatch, failing):
    """The other file's write goes on when the error is there: its file is not closed before it has ended."""
    paths = {name: tmp_path / name for name in "ab"}
    failed, closed = threading.Event(), threading.Event()

    def before(path, number):
        if number == 2 and path.name == failing:
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if number == 2:
            assert failed.wait(PATIENCE)
            assert not closed.wait(0.2)

    watched = Watched(monkeypatch, before, closed.set)
    blocks = ({path: bytes(100_000) for path in paths.values()} for _ in range(5))
    with pytest.raises(OSError, match="Input/output error") as caught:
        write_files(list(paths.values()), blocks)
    assert [path.name for path in watched.ended[2:]] == [name for name in "ab" if name != failing]
    assert closed.is_set() and any(entry.name == "before" for entry in caught.traceback)


def test_an_error_of_the_blocks_is_raised_as_it_is(tmp_path):
    def blocks():
        yield {tmp_path / "a": b"1"}
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more") as caught:
        write_files([tmp_path / "a"], blocks())
    assert caught.traceback[-1].name == "blocks"


def test_ctrl_c_ends_it_after_the_blocks_that_are_held(tmp_path):
    made, interrupted = [], threading.Event()

    def handle(number, frame):
        interrupted.set()
        raise KeyboardInterrupt

    def blocks():
        for number in range(20_000):
            made.append(number)
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
                assert interrupted.wait(PATIENCE)
            yield {tmp_path / "a": b"1"}

    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            write_files([tmp_path / "a"], blocks())
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(made) < 20_000


def test_the_caller_may_be_in_an_event_loop(tmp_path):
    async def notebook():
        write_files([tmp_path / "a"], iter([{tmp_path / "a": b"1"}]))

    asyncio.run(notebook())
    assert (tmp_path / "a").read_bytes() == b"1"
