"""Folders on their way to a name: what killed makers have left goes, what living ones make stays."""

import fcntl
import os
import shutil
import threading

import pytest

from marius_oac.data.folders import new_folder
from marius_oac.errors import InputError
from marius_oac.runtime.files import unfinished as parts
from marius_oac.runtime.files.unfinished import new_part
from tests.threads import PATIENCE


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


def test_what_a_killed_maker_has_left_is_removed_by_the_next(tmp_path):
    for name in (".g.0123abcd.part", ".other.0123abcd.part", ".g.0123abcd.part2", ".g.notours1.part"):
        (tmp_path / name / "work").mkdir(parents=True)
    with new_part(tmp_path / "g") as part:
        assert part.is_dir() and not any(part.iterdir())
        assert not (tmp_path / ".g.0123abcd.part").exists()
    assert hidden(tmp_path) == [".g.notours1.part", ".other.0123abcd.part"]


def test_what_a_living_maker_has_stays(tmp_path):
    with new_part(tmp_path / "g") as first:
        (first / "file").write_text("")
        with new_part(tmp_path / "g") as second:
            assert (first / "file").exists() and first != second
        assert hidden(tmp_path) == [first.name]
    assert hidden(tmp_path) == []


def test_a_link_and_a_file_of_such_a_name_stay(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / ".g.00000000.part").symlink_to(tmp_path / "theirs")
    (tmp_path / ".g.11111111.part").write_text("")
    with new_part(tmp_path / "g"):
        pass
    assert hidden(tmp_path) == [".g.00000000.part", ".g.11111111.part"] and (tmp_path / "theirs").is_dir()


def test_a_part_that_is_taken_for_abandoned_before_it_is_locked_is_begun_again(tmp_path, monkeypatch):
    real, others = parts._lock, []

    def lock(descriptor, how):
        if how == fcntl.LOCK_EX and not others:  # between mkdir and the lock
            others.append(hidden(tmp_path))
            shutil.rmtree(tmp_path / others[0][0])
        return real(descriptor, how)

    monkeypatch.setattr(parts, "_lock", lock)
    with new_part(tmp_path / "g") as part:
        assert part.is_dir() and hidden(tmp_path) == [part.name] != others[0]


def test_a_part_that_is_taken_for_abandoned_before_it_is_opened_is_begun_again(tmp_path, monkeypatch):
    real, others = os.open, []

    def open_late(path, flags, *rest, **named):
        if str(path).endswith(".part") and not others:  # between mkdir and open
            others.append(path.name)
            shutil.rmtree(path)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", open_late)
    with new_part(tmp_path / "g") as part:
        assert part.is_dir() and hidden(tmp_path) == [part.name] != others


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(95, "Operation not supported")

    (tmp_path / ".g.0123abcd.part").mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with new_part(tmp_path / "g") as part:
        assert hidden(tmp_path) == sorted([".g.0123abcd.part", part.name])
    assert hidden(tmp_path) == [".g.0123abcd.part"]


def test_many_may_make_it_and_one_gets_the_name(tmp_path):
    start, outcomes = threading.Barrier(4, timeout=PATIENCE), []

    def make(number):
        try:
            with new_folder(tmp_path / "g") as folder:
                (folder / "who").write_text(str(number))
                start.wait()
            outcomes.append(str(number))
        except InputError as error:
            assert "came into being" in str(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(outcomes) == 1 and (tmp_path / "g" / "who").read_text() == outcomes[0]
    assert hidden(tmp_path) == []


def test_the_disk_has_everything_before_the_name(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        real(descriptor)
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    with new_folder(tmp_path / "deep" / "g") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
    where = str(folder)
    parents = [str(tmp_path), str(tmp_path / "deep")]
    assert set(flushed) == {where, f"{where}/inner", f"{where}/inner/file", *parents}
    assert flushed[-1] == parents[1] and flushed.index(where) > 0


def test_a_folder_that_cant_be_made_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be made: Not a directory"), new_folder(tmp_path / "file" / "g"):
        pass
