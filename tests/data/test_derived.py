"""Folders that follow from something: made once, by one process of several, and anew where they are not sound."""

import errno
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from marius_oac.data.graphs import derived
from marius_oac.data.graphs.derived import DerivedArray, open_derived
from marius_oac.errors import InputError

NAMES = ["numbers.npy"]
ARRAYS = [DerivedArray(NAMES[0], (np.int64,), (5,))]


class Maker:
    """Makes the folder, and counts how often."""

    def __init__(self):
        self.made = 0

    def __call__(self, folder):
        self.made += 1
        np.save(folder / NAMES[0], np.arange(5))

    def open(self, folder, of="this"):
        return open_derived(folder, "about.json", {"of": of}, ARRAYS, self, "it is made again")[0]


def test_it_is_made_once_and_anew_where_it_is_not_sound(tmp_path, capsys):
    make, folder = Maker(), tmp_path / "deep" / "folder"
    for _ in range(2):
        assert make.open(folder).tolist() == list(range(5)) and make.made == 1
    assert capsys.readouterr().err == ""
    (folder / NAMES[0]).write_bytes(b"oops")
    assert make.open(folder).tolist() == list(range(5)) and make.made == 2
    assert "numbers.npy is damaged; it is made again" in capsys.readouterr().err
    make.open(folder, of="that")
    assert make.made == 3 and json.loads((folder / "about.json").read_text())["of"] == "that"
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_one_makes_it_and_the_others_wait(tmp_path, monkeypatch):
    """Locks belong to open files, so two threads stand for two processes."""
    entered, waiting, make = threading.Event(), threading.Event(), Maker()

    class Watched:
        def write(self, text):
            if "waiting for another process that writes to" in text:
                waiting.set()

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stderr", Watched())

    class Slow(Maker):
        def __call__(self, folder):
            entered.set()
            assert waiting.wait(60)
            super().__call__(folder)

    slow = Slow()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow.open, tmp_path / "folder")
        assert entered.wait(60)
        second = pool.submit(make.open, tmp_path / "folder")
        assert first.result(60).tolist() == second.result(60).tolist() == list(range(5))
    assert slow.made == 1 and make.made == 0


def test_an_error_leaves_nothing_and_lets_the_next_one_in(tmp_path):
    def fail(folder):
        (folder / "half").write_text("")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="[Nn]o space left"):
        open_derived(tmp_path / "folder", "about.json", {}, ARRAYS, fail, "")
    assert list(tmp_path.iterdir()) == []
    assert Maker().open(tmp_path / "folder").tolist() == list(range(5))


def test_what_cannot_be_locked_is_said(tmp_path, monkeypatch, capsys):
    def refuse(opened, how):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(derived.fcntl, "flock", refuse)
    assert Maker().open(tmp_path / "folder").tolist() == list(range(5))
    assert "can't be locked (Bad file descriptor): let one run at a time begin on it" in capsys.readouterr().err
