"""Folders of killed processes are removed by the next one; those that are in use, or another's, are not."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from marius_oac.runtime.files import scratch
from marius_oac.runtime.files.scratch import scratch_folder

HOLDS = """
import sys
from marius_oac.runtime.files.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "log").write_text("something")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def left(place):
    return sorted(each.name for each in place.iterdir())


def test_it_is_there_for_the_block_and_gone_after_it_however_it_ends(place):
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), scratch_folder() as folder:
            (folder / "some").mkdir()
            assert (
                left(place) == [folder.parent.name]
                and (folder.parent.stat().st_mode | folder.stat().st_mode) & 0o77 == 0
            )
            raise error
    assert left(place) == []


def test_whoever_uses_it_may_lock_it():
    with scratch_folder() as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)


def test_the_next_one_removes_that_of_a_killed_process_and_none_that_is_held(place):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=pipe, stdout=pipe, text=True) as holding:
        held = Path(holding.stdout.readline().strip()).parent.name
        with scratch_folder() as mine:
            assert left(place) == sorted((held, mine.parent.name))
        assert left(place) == [held]
        holding.send_signal(signal.SIGKILL)
    assert left(place) == [held]
    with scratch_folder() as mine:
        assert left(place) == [mine.parent.name]


def test_what_is_another_users_or_no_folder_stays(place, monkeypatch):
    names = [f"{scratch.PREFIX}{name}" for name in ("file", "folder", "link")]
    (place / names[0]).write_text("")
    (place / names[1]).mkdir()
    (place / "marius-oac.other").mkdir()
    (place / names[2]).symlink_to(place / "marius-oac.other")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with scratch_folder():
        pass
    assert left(place) == sorted((*names, "marius-oac.other"))
    monkeypatch.undo()


def test_one_that_another_process_removes_before_it_is_held_is_made_again(place, monkeypatch):
    make, made = tempfile.mkdtemp, []

    def taken(prefix):
        folder = make(prefix=prefix)
        made.append(folder)
        if len(made) == 1:
            os.rmdir(folder)
        return folder

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", taken)
    with scratch_folder() as folder:
        assert len(made) == 2 and str(folder.parent) == made[1] and folder.is_dir()


def test_so_is_one_that_is_removed_just_before_it_is_held(place, monkeypatch):
    lock, taken = scratch.fcntl.flock, []

    def take(descriptor, how):
        if not taken:
            taken.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.rmdir(taken[0])
        lock(descriptor, how)

    monkeypatch.setattr(scratch.fcntl, "flock", take)
    with scratch_folder() as folder:
        assert folder.is_dir() and str(folder.parent) != taken[0]
    assert left(place) == []


def test_where_there_are_no_locks_nothing_is_removed(place, monkeypatch):
    def refuse(*args):
        raise OSError("no locks")

    monkeypatch.setattr(scratch.fcntl, "flock", refuse)
    (place / f"{scratch.PREFIX}old").mkdir()
    with scratch_folder() as folder:
        assert left(place) == sorted((f"{scratch.PREFIX}old", folder.parent.name))
    assert left(place) == [f"{scratch.PREFIX}old"]
