"""What a crash may leave is what the model says, and a run that goes on from it has lost nothing."""

import os
import random

import pytest

from marius_oac.runs.checkpoints import retention as checkpoints
from tests.chaos import crash_states
from tests.chaos.children import run_cases
from tests.chaos.crash_disk import WAYS, Disk, lay, left_by

QUICK = 250


@pytest.mark.slow
def test_no_crash_loses_anything(tmp_path):
    tally = run_cases("crash_states", 0, tmp_path, count=QUICK)
    assert not tally.faults, "\n\n".join(map(str, tally.faults))
    assert tally.cases == QUICK and tally.by_specimen.keys() == crash_states.SCENARIOS.keys()


def left(disk, way):
    moment = disk.look("now", None)
    return {path: content and content.size for path, content in left_by(moment, way, random.Random(0)).items()}


def flush(disk, path):
    descriptor = os.open(path, os.O_RDONLY)
    disk.look("flush", None)
    disk.flush(descriptor)
    os.close(descriptor)


def test_what_was_not_flushed_may_be_gone(tmp_path):
    disk = Disk(tmp_path)
    (tmp_path / "a").write_bytes(b"x" * 5000)
    assert left(disk, "nothing") == {} and left(disk, "names") == {"a": 0}
    assert left(disk, "everything") == left(disk, "zeros") == {"a": 5000}
    flush(disk, tmp_path / "a")
    assert left(disk, "nothing") == {}, "its name was not"
    assert left(disk, "names") == {"a": 5000}
    flush(disk, tmp_path)
    assert left(disk, "nothing") == {"a": 5000}
    (tmp_path / "a").write_bytes(b"y")
    assert left(disk, "nothing") == {"a": 5000} and left(disk, "contents") == {"a": 1}


def test_a_rename_happens_as_a_whole(tmp_path):
    disk = Disk(tmp_path)
    for name in "ab":
        (tmp_path / name).write_bytes(b"x" * (1 + (name == "b")))
        flush(disk, tmp_path / name)
    flush(disk, tmp_path)
    disk.look("rename", None)
    disk.renames(tmp_path / "a", tmp_path / "b")
    os.rename(tmp_path / "a", tmp_path / "b")
    moment = disk.look("now", None)
    found = {tuple(left_by(moment, way, random.Random(n))) for way in WAYS for n in range(20)}
    assert found == {("a", "b"), ("b",)}
    assert left(disk, "nothing") == {"a": 1, "b": 2} and left(disk, "everything") == {"b": 1}


def test_a_tree_is_laid_out_as_it_was(tmp_path):
    work, content = tmp_path / "work", bytes(9000) + os.urandom(5000) + bytes(3000)
    (work / "deep").mkdir(parents=True)
    (work / "deep" / "file").write_bytes(content)
    tree = left_by(Disk(work).look("now", None), "everything", random.Random(0))
    lay(tree, work)
    assert (work / "deep" / "file").read_bytes() == content and list(tree) == ["deep", "deep/file"]


@pytest.mark.slow
def test_a_flush_that_is_missing_is_seen(tmp_path, monkeypatch):
    """Of the folder of checkpoints, after one has got its name: another one is removed then."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, getattr(os, name))  # is put back at the end
    monkeypatch.setattr(checkpoints, "sync", lambda path: None)
    monkeypatch.setattr(crash_states, "SCENARIOS", {"memory": crash_states.SCENARIOS["memory"]})
    found = [
        case for case in crash_states.cases(tmp_path, 0) if "names left" in case.change or "nothing" in case.change
    ]
    assert any("lost: checkpoint" in str(case.run()[1]) for case in found)
