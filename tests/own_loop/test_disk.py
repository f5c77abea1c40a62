"""Rows of a loop of the user's own on disk: the bits of rows in memory, and nobody waits for a batch that waits for
him."""

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import marius_oac.torch as mt
from marius_oac.errors import InputError
from marius_oac.kernels.cpu import rows as kernels
from marius_oac.storage.disk.files import PageFiles
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.storage.reserved import MappedFile
from tests.house.test_house import ROOT
from tests.own_loop.loops import Loop, key_batches
from tests.threads import PATIENCE

KEYS = 600
PAGES = KEYS // 7 + 1  # a page has 7 rows of 64 floats with their state
TENTH = PAGES // 10 * (4096 + 77)
BATCHES = key_batches(40, keys=KEYS, most=6)


@pytest.fixture(autouse=True)
def no_file_is_left(tmp_path):
    yield
    gc.collect()
    assert not opened(tmp_path)


def opened(folder):
    """The files in a folder that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [name for name in found if name.startswith(f"{folder}/")]


@pytest.fixture
def disk_loop(tmp_path):
    """`disk_loop(**given)` -> a loop of a table in `tmp_path`, of whose rows a tenth is in memory."""
    loops = []

    def make(memory=TENTH, **given):
        loops.append(Loop(dimension=64, memory=memory, path=tmp_path, **given))
        return loops[-1]

    yield make
    for loop in loops:
        loop.engine.close()
        loop.items.table.close()
    loops.clear()


def looked_at(loop, batches=BATCHES, stop=None):
    """Trains, looks at all rows between some batches, and leaves after `stop` of them. Returns the rows."""
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(batches)):
            if number == stop:
                break
            if number % 9 == 0:
                loop.table(KEYS)
            loop.train(batch)
    return loop.table(KEYS)


@pytest.mark.parametrize(("mode", "in_flight"), [("sync", 1), ("oac", 1), ("oac", 4), ("oac", 16)])
def test_rows_on_disk_have_the_bits_of_rows_in_memory(disk_loop, mode, in_flight):
    loop = disk_loop(mode=mode, in_flight=in_flight)
    assert torch.equal(looked_at(loop), looked_at(Loop(dimension=64, mode="sync")))
    metrics = loop.items.table.store.backing.metrics()
    assert metrics["disk.bytes_read"] and metrics["disk.bytes_written"]


@pytest.mark.parametrize("stop", [0, 1, 11])
def test_a_loop_that_is_left_goes_on(disk_loop, stop):
    loop = disk_loop(in_flight=8)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(BATCHES)):
            if number == stop:
                break
            loop.train(batch)
        loop.table(KEYS)
        for batch in engine.batches(BATCHES[stop:]):
            loop.train(batch)
    assert torch.equal(loop.table(KEYS), looked_at(Loop(dimension=64, mode="sync")))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_the_loop_leaves_what_was_trained(disk_loop, error):
    loop = disk_loop()
    with pytest.raises(error), loop.engine as engine:
        for number, batch in enumerate(engine.batches(BATCHES)):
            if number == 7:
                raise error
            loop.train(batch)
    assert torch.equal(loop.table(KEYS), looked_at(Loop(dimension=64, mode="sync"), BATCHES[:7]))


def test_rows_are_read_and_saved_while_batches_in_flight_hold_what_they_may(disk_loop, tmp_path):
    """All memory that batches may hold is held by the one at hand and those behind it, which wait for it."""
    loop, waits = disk_loop(memory=16 * (4096 + 77), in_flight=16), threading.Semaphore(0)
    tier = loop.items.table.store.backing
    tier._room.wait = lambda timeout=None, wait=tier._room.wait: (waits.release(), wait(timeout))[1]
    apart = [{"item": 7 * torch.arange(4 * number, 4 * number + 4)} for number in range(20)]
    with loop.engine as engine:
        for _ in engine.batches([{"item": each} for each in torch.arange(KEYS).split(35)]):
            pass  # the row of a key has its number
        waits = threading.Semaphore(0)
        batches = engine.batches(apart)
        loop.train(next(batches))
        assert waits.acquire(timeout=PATIENCE), "no claim waits for room"
        assert (tier.directory.arrays.pins > 0).sum() == 12 and tier.frames - tier.on_demand == 14
        assert torch.equal(loop.table(KEYS), looked_at(Loop(dimension=64), apart[:1]))
        engine.save(tmp_path / "saved")
        loop.table(KEYS)
        for batch in batches:
            loop.train(batch)
    assert torch.equal(loop.table(KEYS), looked_at(Loop(dimension=64), apart))


def test_a_claim_of_a_batch_leaves_room_for_calls_on_demand(disk_loop):
    loop = disk_loop()
    with loop.engine as engine:
        next(engine.batches(BATCHES))
    tier = loop.items.table.store.backing
    most = tier.frames - tier.on_demand
    with pytest.raises(InputError, match=f"uses {most + 1} pages of 4,096 bytes and the memory holds {most}"):
        tier.announce(1000, [np.arange(most + 1) * 7])
    tier.fetch(claim := tier.announce(1000, [np.arange(most) * 7]))
    assert (tier.directory.arrays.pins > 0).sum() == most
    loop.table(KEYS)
    tier.release(claim)


@pytest.mark.parametrize("keys", [1, 7 * 3, 7 * 8, 7 * 20])
def test_a_batch_may_have_all_rows_where_memory_suffices(disk_loop, keys):
    loop = disk_loop(memory="1MiB", capacity=keys)
    looked_at(loop, [{"item": torch.arange(keys)}] * 4)


def test_a_batch_that_memory_cannot_hold_is_told_with_what_it_takes(disk_loop):
    batches = [{"item": torch.arange(7 * 900)}] * 3
    line = (
        "memory: batch 0 uses 900 pages of 4,096 bytes and the memory holds 7: 5 MiB are needed at least, or smaller "
        "batches"
    )
    with pytest.raises(InputError) as caught:
        looked_at(disk_loop(), batches)
    assert str(caught.value) == line
    looked_at(disk_loop(memory="5MiB"), batches)


def test_tables_share_a_folder_and_a_table_in_memory_is_beside_them(tmp_path):
    def rows(**given):
        tables = [mt.Embedding(64, **given), mt.EmbeddingBag(32, **given), mt.Embedding(8)]
        model = torch.nn.ModuleList(tables)
        optimizer = mt.Adagrad(model, lr=0.1)
        keys = dict.fromkeys(tables, "item")
        with mt.Engine(model, keys=keys, optimizers=[optimizer], in_flight=8) as engine:
            for batch in engine.batches(BATCHES):
                each = batch["item"]
                (tables[0](each).pow(2).sum() + tables[1](each[None]).sum() + tables[2](each).pow(2).sum()).backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            found = [tables[0](torch.arange(KEYS)), tables[1](torch.arange(KEYS)[:, None]), tables[2](each)]
        for table in tables:
            table.table.close()
        return found

    assert all(map(torch.equal, rows(memory=TENTH, path=tmp_path), rows()))


OTHER = """
import os, signal, sys
from tests.own_loop.test_disk import BATCHES, TENTH, Loop, looked_at
loop = Loop(dimension=64, memory=TENTH, path=sys.argv[1])
looked_at(loop, BATCHES[:5])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("forked_programs")
def test_processes_share_a_folder_and_leave_nothing_in_it(disk_loop, tmp_path):
    loop = disk_loop()
    looked_at(loop, stop=3)
    done = subprocess.run([sys.executable, "-c", OTHER, str(tmp_path)], cwd=ROOT, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL and os.listdir(tmp_path) == []


def test_what_nobody_has_any_more_ends_its_threads_and_files(tmp_path, monkeypatch):
    running = threading.active_count()
    loop = Loop(dimension=64, memory=TENTH, path=tmp_path)
    looked_at(loop)
    threads = [each for each in threading.enumerate() if each.name.startswith("io")]
    assert threads and opened(tmp_path)
    del loop
    while any(each.is_alive() for each in threads):  # the last pages that left may be on their way to the disk
        gc.collect()
        threads[0].join(0.01)
    assert threading.active_count() == running and not opened(tmp_path)


def test_checkpoints_are_whole_and_of_any_place(disk_loop, tmp_path):
    def saved(loop, folder):
        with loop.engine as engine:
            for number, batch in enumerate(engine.batches(BATCHES)):
                loop.train(batch)
                if number in (9, 19):
                    engine.save(tmp_path / folder)
        return loop.table(KEYS)

    def resumed(loop, folder):
        with loop.engine as engine:
            for batch in engine.batches(BATCHES[:30]):  # what was there before is gone
                loop.train(batch)
            assert engine.load(tmp_path / folder)
            for batch in engine.batches(BATCHES):
                loop.train(batch)
        return loop.table(KEYS)

    expected = saved(disk_loop(), "disk")
    assert torch.equal(saved(Loop(dimension=64), "memory"), expected)
    assert torch.equal(resumed(disk_loop(in_flight=8), "memory"), expected)
    assert torch.equal(resumed(disk_loop(in_flight=2), "disk"), expected)
    assert torch.equal(resumed(Loop(dimension=64), "disk"), expected)


@pytest.mark.parametrize(("where", "name"), [(PageFiles, "grow"), (MappedFile, "take")])
def test_a_full_disk_is_told_and_so_is_that_rows_may_be_lost(disk_loop, monkeypatch, tmp_path, where, name):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr(where, name, full)
    loop = disk_loop()
    with pytest.raises(InputError) as caught:
        looked_at(loop)
    what = "page file" if name == "grow" else "can't be written"
    assert str(caught.value) == f"{tmp_path}: {what}: No space left on device"
    with pytest.raises(InputError, match="rows of '0' can't be read: an engine has failed: .*No space left"):
        loop.table(KEYS)
    with pytest.raises(InputError, match="rows of '0' may be lost"):
        mt.Engine(loop.model, keys={loop.items: "item"}, optimizers=[loop.rows])


WRONG = {
    "Embedding: path: memory needs path, a folder for the other rows": {"memory": "1MiB"},
    "Embedding: memory: path needs memory, such as '8GiB', for the rows that are not in files": {"path": "."},
    "/proc/none: there is no such folder": {"memory": "1MiB", "path": "/proc/none"},
    f"{__file__}: there is no such folder": {"memory": "1MiB", "path": __file__},
    "Embedding: path: a folder, or a list of them, not 7": {"memory": "1MiB", "path": 7},
    "Embedding: path: a folder, or a list of them, not []": {"memory": "1MiB", "path": []},
    "Embedding: memory: a number of bytes, or a text such as '8GiB', not 'much'": {"memory": "much", "path": "."},
    "Embedding: memory: a number of bytes, or a text such as '8GiB', not 0": {"memory": 0, "path": "."},
    "Embedding: memory: a number of bytes, or a text such as '8GiB', not true": {"memory": True, "path": "."},
    "/proc: no page file can be made there: No such file or directory": {"memory": "1MiB", "path": "/proc"},
}


@pytest.mark.parametrize("line", WRONG)
def test_what_can_be_no_place_for_rows_is_told(line):
    with pytest.raises(InputError) as caught:
        Loop(**WRONG[line])
    assert str(caught.value) == line


def test_ctrl_c_while_rows_are_read_holds_no_page(disk_loop, monkeypatch):
    loop, read = disk_loop(), kernels.read
    looked_at(loop, stop=9)
    expected = loop.table(KEYS)

    def interrupted(*given):
        signal.raise_signal(signal.SIGINT)
        read(*given)

    monkeypatch.setattr(kernels, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.table(KEYS)
    monkeypatch.undo()
    tier = loop.items.table.store.backing
    assert isinstance(tier, DiskTier) and not tier.directory.arrays.pins.any()
    loop.model.eval()
    assert torch.equal(loop.items(torch.arange(KEYS)), expected)


def test_files_in_several_folders(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    given = {"dimension": 64, "memory": TENTH, "path": folders}
    loop = Loop(**given)
    assert torch.equal(looked_at(loop), looked_at(Loop(dimension=64)))
    assert len(loop.items.table.store.backing.files.listing.files) == 2
    loop.items.table.close()
