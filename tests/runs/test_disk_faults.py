"""Rows on disk when something breaks: flipped bits, disks that fail or are full, numbers that are none, files that are
gone. One line names it, nothing that was saved is lost, and the run goes on to the bits of an undisturbed one."""

import errno
import os
import shutil
import threading

import numpy as np
import pytest

from marius_oac import open_run, resume, train
from marius_oac.errors import DivergedError
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.storage.disk.files import HEADER_BYTES, PageFiles
from tests.disk import PAGE, bits, budget, clicks_config, days, graph_config, page_files
from tests.graphs import NODES
from tests.run_folders import contents, edit, flip_a_byte, says, slow

EVERY = ("checkpoint.every_batches=7", "checkpoint.keep=3")
LITTLE = budget(20)
TWO_TABLES = "data.categorical=[{name: user, dimension: 200}, {name: item, dimension: 100}]"


@pytest.fixture(scope="module")
def config(graph):
    return graph_config(graph, *EVERY, LITTLE, "data.path=" + str(graph.path))


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A run that nothing happened to; not to be changed."""
    return train(config, tmp_path_factory.mktemp("whole") / "run").path


@pytest.fixture(scope="module")
def expected(whole):
    return bits(open_run(whole).summary)


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "run")


def reopened(run):
    """The run as if it had not ended: its last checkpoint is gone."""
    checkpoints = Checkpoints(run / "checkpoints")
    shutil.rmtree(checkpoints.folder / checkpoints.names()[-1])
    (run / "summary.json").unlink()
    return checkpoints.names()[-1]


def slots_of(run, name, table="entities"):
    return Checkpoints(run / "checkpoints").open(name).array(table, "slots")


def flip(path, offset, bit=0):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def fails(command, *argv):
    """The one line that a command ends with."""
    code, _, err = command(*argv)
    assert code == 2 and says(err), err
    return err[-1]


@pytest.mark.parametrize("place", [0, 8, 2055, 2064, PAGE - 1], ids=["timestamp", "value", "state", "padding", "end"])
def test_a_flipped_bit_of_a_page_is_found_and_named(run, command, place):
    name = reopened(run)
    page, slots = 77, slots_of(run, name)
    (file,) = page_files(run)
    flip(file, HEADER_BYTES + int(slots[page]) * PAGE + place, place % 8)
    named = f"{file}: slot {slots[page]} is damaged or stale: rows 77 to 77 of table 'entities'"
    before = contents(run / "checkpoints")
    for argv in (("resume", run), ("eval", run), ("export", run), ("compare", run, run)):
        assert named in fails(command, *argv)
    assert not (run / "export-safetensors").exists()
    assert contents(run / "checkpoints").items() >= before.items()


def test_a_page_of_another_moment_is_found(run, command):
    """What a lost write leaves."""
    name, before = reopened(run), Checkpoints(run / "checkpoints").names()[0]
    (file,), new, old = page_files(run), slots_of(run, name), slots_of(run, before)
    page = int(np.flatnonzero((new != old) & (old >= 0))[0])
    content = file.read_bytes()
    at, other = (HEADER_BYTES + int(slots[page]) * PAGE for slots in (new, old))
    file.write_bytes(content[:at] + content[other : other + PAGE] + content[at + PAGE :])
    assert f"slot {new[page]} is damaged or stale: rows {page} to {page}" in fails(command, "eval", run)
    neighbour = HEADER_BYTES + int(new[page - 1]) * PAGE
    file.write_bytes(content[:at] + content[neighbour : neighbour + PAGE] + content[at + PAGE :])
    assert f"slot {new[page]} is damaged or stale: rows {page} to {page}" in fails(command, "resume", run)


@pytest.mark.parametrize("where, named", [
    ("tables/pages.json", "pages"),
    ("header", "is not a page file of this run"),
    ("entities.slots.npy", "entities.slots.npy: is damaged"),
    ("entities.checksums.npy", "entities.checksums.npy: is damaged"),
    ("manifest.json", "manifest.json: is damaged"),
    ("dense.safetensors", "dense.safetensors: is damaged"),
])  # fmt: skip
def test_a_flipped_bit_anywhere_else_is_found_and_named(run, command, expected, where, named):
    name = reopened(run)
    path = {"header": page_files(run)[0], "tables/pages.json": run / where}.get(
        where, run / "checkpoints" / name / where
    )
    content = path.read_bytes()
    flip(path, 100) if where == "header" else flip_a_byte(path)
    for argv in (("resume", run), ("eval", run), ("export", run)):
        said = fails(command, *argv)
        assert named in said and str(run) in said
    path.write_bytes(content)
    assert bits(resume(run).summary) == expected


@pytest.mark.parametrize("file", ["manifest.json", "entities.slots.npy", "entities.checksums.npy", "dense.safetensors"])
def test_the_checkpoint_before_a_damaged_one_goes_on(run, command, expected, file):
    """As the message about the damaged one says."""
    name = reopened(run)
    flip_a_byte(run / "checkpoints" / name / file)
    before = Checkpoints(run / "checkpoints").names()[-2]
    assert f"--checkpoint {before}" in fails(command, "resume", run)
    assert bits(resume(run, checkpoint=before).summary) == expected


def test_a_damaged_older_checkpoint_is_in_nobodys_way(run, expected):
    names = Checkpoints(run / "checkpoints").names()
    reopened(run)
    flip_a_byte(run / "checkpoints" / names[0] / "entities.slots.npy")
    assert bits(resume(run).summary) == expected


@pytest.mark.parametrize("what", ["pages.json", "the page file", "the folder"])
def test_files_that_are_gone_are_named_and_nothing_more_is_lost(run, command, expected, tmp_path, what):
    reopened(run)
    gone = {"pages.json": run / "tables/pages.json", "the folder": run / "tables"}.get(what, page_files(run)[0])
    gone.rename(tmp_path / "elsewhere")
    before = contents(run / "tables")
    for argv in (("resume", run), ("eval", run)):
        said = fails(command, *argv)
        assert "No such file" in said and str(run / "tables") in said
    assert contents(run / "tables") == before
    shutil.rmtree(gone, ignore_errors=True)
    (tmp_path / "elsewhere").rename(gone)
    assert bits(resume(run).summary) == expected


def test_a_page_file_of_another_name_leads_to_the_listing(run, command):
    """Which may be what is damaged."""
    listing = run / "tables" / "pages.json"
    edit(listing, page_files(run)[0].name, "deeper/" + page_files(run)[0].name)
    assert f"No such file or directory; it is named in {listing}" in fails(command, "eval", run)


@pytest.mark.parametrize("task", ["graph", "clicks"])
def test_a_page_file_that_was_cut_is_named(run, graph, command, tmp_path, task):
    if task == "clicks":
        log = days(tmp_path / "log")
        run = train(clicks_config(log, LITTLE, test=log[0]), tmp_path / "clicks").path
    (file,) = page_files(run)
    os.truncate(file, HEADER_BYTES + 20 * PAGE)
    size = file.stat().st_size
    said = fails(command, "eval", run)
    assert str(file) in said and file.stat().st_size == size


def failing(monkeypatch, method, after, error):
    """From the call of that number on a method of PageFiles raises."""
    real, calls = getattr(PageFiles, method), []

    def call(self, *arguments):
        calls.append(None)
        if len(calls) > after:
            raise error
        return real(self, *arguments)

    monkeypatch.setattr(PageFiles, method, call)


@pytest.mark.parametrize(
    "method, after", [slow("read", 0), slow("read", 150), slow("write", 0), ("write", 120), ("sync", 4)]
)
def test_a_disk_that_fails_stops_the_run_and_it_goes_on(
    config, command, expected, tmp_path, monkeypatch, method, after
):
    run, path = tmp_path / "run", tmp_path / "c.yaml"
    path.write_text(config.dump())
    before = threading.active_count()
    with monkeypatch.context() as patch:
        failing(patch, method, after, OSError(errno.EIO, os.strerror(errno.EIO), "/disk/0.pages"))
        said = fails(command, "train", path, "--out", run)
    assert "Input/output error" in said and ("/disk/0.pages" in said or method == "sync")
    assert threading.active_count() == before
    assert bits(resume(run).summary) == expected


def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(config, command, expected, tmp_path, monkeypatch):
    run, path, real = tmp_path / "run", tmp_path / "c.yaml", os.posix_fallocate
    path.write_text(config.dump())

    def full(descriptor, offset, size):
        if offset + size > HEADER_BYTES + 256 * PAGE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, offset, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        said = fails(command, "train", path, "--out", run)
        assert "No space left on device" in said and str(page_files(run)[0]) in said
        again = fails(command, "resume", run)
        assert "No space left on device" in again
    assert Checkpoints(run / "checkpoints").names(), "nothing was saved before: the test is too tight"
    assert bits(resume(run).summary) == expected


@pytest.mark.slow
def test_a_small_file_system_that_is_really_full(config, command, expected, tmp_path, monkeypatch):
    run, disk, path = tmp_path / "run", tmp_path / "disk", tmp_path / "c.yaml"
    disk.mkdir()
    path.write_text(config.dump())
    if os.system(f"mount -t tmpfs -o size=1500k tmpfs {disk} 2>/dev/null"):
        pytest.skip("this user can't mount a small file system")
    try:
        with monkeypatch.context() as patch:  # somebody else fills it after it was looked at
            patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))
            said = fails(command, "train", path, "--out", run, "--set", f"storage.path={disk}")
        assert "No space left on device" in said and str(disk) in said
        assert os.system(f"mount -o remount,size=20m {disk}") == 0
        assert bits(resume(run).summary) == expected
    finally:
        assert os.system(f"umount {disk}") == 0


@pytest.mark.parametrize("budget_of, value", [(20, np.nan), slow(NODES, np.inf), slow(20, np.inf), slow(NODES, np.nan)])
def test_numbers_that_are_none_are_found_at_the_checkpoint(config, expected, tmp_path, monkeypatch, budget_of, value):
    """Whether their page has left the memory before or not."""
    run, real = tmp_path / "run", PageFiles.submit

    def probe(stage, batch_index):
        if (stage, batch_index) == ("write", 34):  # the last before it
            monkeypatch.setattr("marius_oac.kernels.cpu.rows.commit", spoiled)

    from marius_oac.kernels.cpu import rows as kernels

    commit = kernels.commit

    def spoiled(table, offsets, values, timestamp):
        monkeypatch.setattr("marius_oac.kernels.cpu.rows.commit", commit)
        values[0, 300] = value  # optimizer state
        return commit(table, offsets, values, timestamp)

    with pytest.raises(DivergedError, match=r"rows \d+ to \d+ of table 'entities' hold NaN or infinite .* batch 34"):
        train(config.replace(budget(budget_of), "pipeline.in_flight=1"), run, probe=probe)
    assert Checkpoints(run / "checkpoints").names()[-1] == "0000000028"
    assert real is PageFiles.submit
    assert bits(resume(run).summary) == expected


@pytest.mark.slow
def test_another_capacity_changes_nothing(tmp_path):
    """By default a table has room for what the free memory can hold, which is never the same twice: the pages of the
    second table have other numbers then."""
    log = days(tmp_path / "log")
    config = clicks_config(log, *EVERY, budget(30), TWO_TABLES, "model.dimension=100", "model.network=dcnv2")
    whole = bits(train(config.replace("keys.capacity=300"), tmp_path / "whole").summary)

    def stop(stage, batch_index):
        if (stage, batch_index) == ("compute", 30):
            raise OSError("stopped here")

    with pytest.raises(OSError, match="stopped here"):
        train(config.replace("keys.capacity=300"), tmp_path / "run", probe=stop)
    assert bits(resume(tmp_path / "run", ["keys.capacity=500"]).summary) == whole


def test_no_direct_io_says_so_and_works(config, command, expected, tmp_path, monkeypatch):
    real, run, path = os.open, tmp_path / "run", tmp_path / "c.yaml"
    path.write_text(config.dump())

    def refusing(name, flags, *arguments, **options):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(name))
        return real(name, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    code, _, err = command("train", path, "--out", run)
    notes = [line for line in err if "direct I/O" in line]
    assert code == 0 and len(notes) == 1 and str(run / "tables") in notes[0]
    assert bits(open_run(run).summary) == expected
