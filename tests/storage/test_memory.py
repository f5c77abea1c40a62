"""The memory store passes the conformance suite and holds its memory as it says."""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from marius_oac.errors import InputError
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.mapped import MappedStore
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.snapshots import SavedTable
from tests.storage.conformance import JIT, StoreConformance, initial_rows
from tests.storage.torture import ConcurrentConformance


class MemoryStores:
    def make_store(self, num_rows, layout, initial, capacity=None):
        return MemoryStore(initial.table, num_rows, layout, initial, capacity)


class TestMemoryStore(MemoryStores, StoreConformance):
    pass


class TestConcurrentMemoryStore(MemoryStores, ConcurrentConformance):
    pass


@pytest.mark.slow
class TestConcurrentMemoryStoreLonger(MemoryStores, ConcurrentConformance):
    ROUNDS = 8000 if JIT else 12


def test_memory_is_what_the_layout_says():
    layout = RowLayout(100, 100)
    store = MemoryStore("t", 1000, layout, RowInitial("uniform", 1.0, 0, "t"))
    assert store.nbytes == 1000 * layout.row_bytes == 1000 * 808
    assert store._memory.ctypes.data % 64 == 0
    store.close()
    assert store.nbytes == 0


@dataclass(frozen=True)
class WatchedInitial(RowInitial):
    """Calls `watch` before it fills rows."""

    watch: Callable[[], None] = field(kw_only=True, default=lambda: None)

    def fill(self, keys, rows, dimension):
        self.watch()
        super().fill(keys, rows, dimension)


@pytest.mark.parametrize("kind", ["memory", "mapped"])
@pytest.mark.parametrize("way", ["restore", "resize"])
def test_rows_that_are_loaded_are_not_filled_before(way, kind, tmp_path):
    layout = RowLayout(3, 1)
    initial = WatchedInitial("uniform", 1.0, 0, "t", watch=lambda: pytest.fail("rows were filled"))
    arrays = {
        "values": np.arange(15, dtype=np.float32).reshape(5, 3), "state": np.ones((5, 1), np.float32),
        "timestamps": np.arange(5),
    }  # fmt: skip
    saved = SavedTable("t", tmp_path, arrays.__getitem__)
    make = MemoryStore if kind == "memory" else partial(MappedStore, tmp_path)
    with make("t", 5, layout, initial) as store:
        if way == "restore":
            store.restore(saved)
        else:
            store.resize(5)
            for first in range(5):
                store.load(first, *reversed(saved.read(slice(first, first + 1))))
        store.initialize()
        (block,) = store.blocks()
    np.testing.assert_array_equal(block.rows, np.hstack((arrays["values"], arrays["state"])))
    np.testing.assert_array_equal(block.timestamps, arrays["timestamps"])


def test_a_call_waits_until_another_thread_has_filled_the_table():
    begun, both = threading.Event(), threading.Event()

    class Lock:
        """Says when two threads want it."""

        def __init__(self):
            self.real, self.wanted = threading.Lock(), 0

        def __enter__(self):
            self.wanted += 1
            if self.wanted == 2:
                both.set()
            self.real.acquire()

        def __exit__(self, *_):
            self.real.release()

    def watch():
        begun.set()
        assert both.wait(30), "the second thread did not wait for the first"

    layout, rows = RowLayout(3, 1), np.arange(10)
    initial = WatchedInitial("uniform", 1.0, 0, "t", watch=watch)
    with MemoryStore("t", 10, layout, initial) as store, ThreadPoolExecutor(2) as threads:
        store._filling = Lock()
        found = [np.zeros((10, 4), np.float32) for _ in range(2)]
        first = threads.submit(store.read, rows, found[0], np.empty(10, np.int64))
        assert begun.wait(30)
        second = threads.submit(store.read, rows, found[1], np.empty(10, np.int64))
        try:
            second.result(30)
        finally:
            both.set()
        first.result(30)
    for each in found:
        np.testing.assert_array_equal(each, initial_rows(RowInitial("uniform", 1.0, 0, "t"), 10, layout))


def test_bfloat16_rows_start_rounded():
    initial, layout = RowInitial("normal", 1.0, 0, "t", state_initial=0.1), RowLayout(3, 1, "bfloat16")
    with MemoryStore("t", 10, layout, initial) as store:
        (block,) = store.blocks()
    exact = initial_rows(initial, 10, layout)
    assert (block.rows[:, :3] != exact[:, :3]).any()
    np.testing.assert_allclose(block.rows[:, :3], exact[:, :3], rtol=2**-8)
    np.testing.assert_array_equal(block.rows[:, 3], exact[:, 3])


def test_rows_in_a_file_have_their_place_on_the_disk_until_they_are_closed(tmp_path):
    layout = RowLayout(4, 2)
    with MappedStore(tmp_path / "scratch", "rows", 500, layout, RowInitial("uniform", 0.0, 0, "rows")) as store:
        file = (tmp_path / "scratch" / "rows.rows").stat()
        assert 512 * file.st_blocks >= file.st_size >= 500 * layout.row_bytes
        last, values = np.array([499]), np.full((1, 6), 7, np.float32)
        assert store.commit(last, values, 3) == 0
        into, timestamps = np.empty((1, 6), np.float32), np.empty(1, np.int64)
        store.read(last, into, timestamps)
        assert (into == 7).all() and timestamps.tolist() == [3]
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.skipif(not JIT, reason="too many rows without the JIT")
def test_rows_to_come_take_their_place_when_they_come(tmp_path):
    layout, capacity = RowLayout(4, 2), 1 << 20
    file, keys = tmp_path / "rows.rows", np.arange(200_000)
    with MappedStore(tmp_path, "rows", 0, layout, RowInitial("uniform", 0.0, 0, "rows"), capacity) as store:
        assert file.stat().st_blocks == 0
        store.extend(keys)
        assert 512 * file.stat().st_blocks >= 200_000 * layout.row_bytes
        store.resize(400_000)
        assert 400_000 * layout.row_bytes <= 512 * file.stat().st_blocks < 600_000 * layout.row_bytes


def test_rows_that_the_disk_has_no_room_for_leave_those_that_are_there(tmp_path, monkeypatch):
    layout = RowLayout(4, 2)
    with MappedStore(tmp_path, "rows", 10, layout, RowInitial("uniform", 0.0, 0, "rows"), 1 << 20) as store:

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)
        for more in (lambda: store.extend(np.arange(1 << 19)), lambda: store.resize(1 << 19)):
            with pytest.raises(InputError, match=r"rows\.rows: can't be written: No space left on device"):
                more()
            assert store.num_rows == 10
    with pytest.raises(InputError, match="No space left"):
        MappedStore(tmp_path, "others", 10, layout, RowInitial("uniform", 0.0, 0, "others"))
    assert not list(tmp_path.iterdir())
