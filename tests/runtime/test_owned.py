"""Folders in which nobody else can write; and kernels, which are kept in no other."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from marius_oac.kernels import ahead
from marius_oac.kernels.cpu import jit
from marius_oac.kernels.gpu import choice
from marius_oac.runtime.files import owned
from marius_oac.runtime.files.owned import exchangeable


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "above" / "cache"
    made.mkdir(parents=True, mode=0o700)
    return made


def test_a_folder_of_this_user_s_alone_is_taken(folder):
    assert exchangeable(folder) is None
    assert exchangeable(folder / "not" / "there" / "yet") is None


@pytest.mark.parametrize(("at", "mode"), [(".", 0o777), ("..", 0o777), (".", 0o1777), (".", 0o702)])
def test_where_others_may_write_it_is_not(folder, at, mode):
    place = Path(os.path.normpath(folder / at))
    place.chmod(mode)
    assert exchangeable(folder) == f"others may write to {place}"


def test_above_it_others_may_write_where_they_exchange_nothing(folder):
    folder.parent.chmod(0o1777)
    assert exchangeable(folder) is None


def test_a_link_is_as_good_as_both_its_ends(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert exchangeable(tmp_path / "link") is None
    folder.chmod(0o777)
    assert exchangeable(tmp_path / "link") == f"others may write to {tmp_path / 'link'}"
    folder.chmod(0o700)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    (open_to_all / "cache").mkdir(mode=0o700)
    (open_to_all / "link").symlink_to(folder)
    (tmp_path / "into").symlink_to(open_to_all / "cache")
    open_to_all.chmod(0o777)
    assert exchangeable(tmp_path / "into") == f"others may write to {open_to_all}"
    assert exchangeable(open_to_all / "link") == f"others may write to {open_to_all}"


def test_a_relative_path_is_not_taken(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert exchangeable(Path("cache")) == "its path is not absolute"


def test_nor_a_folder_of_another_user_s(folder, monkeypatch):
    real = os.stat
    monkeypatch.setattr(owned.os, "stat", lambda path: _of(real(path), 12345 if path == folder else 0))
    assert exchangeable(folder) == f"{folder} is another user's"


def _of(found, user):
    return SimpleNamespace(st_uid=user, st_gid=found.st_gid, st_mode=found.st_mode & ~stat.S_IWOTH)


@pytest.mark.parametrize(
    ("group", "own"),
    [
        (SimpleNamespace(gr_name="me", gr_mem=[]), True),
        (SimpleNamespace(gr_name="me", gr_mem=["me"]), True),
        (SimpleNamespace(gr_name="me", gr_mem=["me", "you"]), False),
        (SimpleNamespace(gr_name="staff", gr_mem=[]), False),
        (None, False),
    ],
)
def test_a_group_counts_as_the_user_that_it_was_made_for(folder, monkeypatch, group, own):
    def named(number):
        if group is None:
            raise KeyError(number)
        return group

    owned._is_own.cache_clear()
    monkeypatch.setattr(owned.grp, "getgrgid", named)
    monkeypatch.setattr(owned.pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="me"))
    real = os.stat

    def shared(path):
        found = real(path)
        mode = found.st_mode | (0o020 if path == folder else 0)
        return SimpleNamespace(st_uid=0, st_gid=777 if path == folder else 0, st_mode=mode & ~0o002)

    monkeypatch.setattr(owned.os, "stat", shared)
    found = exchangeable(folder)
    monkeypatch.undo()  # pytest needs it to say what failed
    owned._is_own.cache_clear()
    assert found == (None if own else f"others may write to {folder}")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["others", "relative"])
def test_kernels_are_not_kept_where_others_may_write_and_a_note_says_so(folder, where):
    folder.chmod(0o777)
    given = str(folder) if where == "others" else "cache"
    code = (
        "from marius_oac.kernels.cpu.random import mix\nimport numpy as np\nmix(np.uint64(1))\n"
        "print(type(mix._cache).__name__)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=folder.parent, text=True,
                          capture_output=True, env={**os.environ, "NUMBA_CACHE_DIR": given})  # fmt: skip
    why = "its path is not absolute" if where == "relative" else f"others may write to {folder}"
    assert done.stdout == "NullCache\n" and done.returncode == 0
    assert done.stderr.startswith("compiled code is not kept in") and why in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not list(folder.rglob("*.nb*"))


def test_only_beside_the_source_are_kernels_kept_where_others_may_write(folder):
    """Python's bytecode is read from there, too."""
    folder.chmod(0o777)
    beside = folder.parent / "__pycache__"
    folder.rename(beside)
    assert jit._unsafe(beside, folder.parent / "source.py") == ""
    assert jit._unsafe(beside, folder.parent / "other" / "source.py").endswith(f": others may write to {beside}")


def test_nothing_is_compiled_ahead_into_such_a_folder(folder, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert ahead.cache_folder() == folder
    folder.chmod(0o777)
    assert ahead.cache_folder() is None


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_triton_is_not_used_with_such_a_cache(folder, monkeypatch, capsys, mode):
    folder.chmod(mode)
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    choice._is_there.cache_clear()
    assert choice._is_there() == (mode == 0o700)
    choice._is_there.cache_clear()
    said = f"note: Triton's cache {folder} is not used: others may write to {folder}; the GPU computes by"
    assert (said in capsys.readouterr().err) == (mode == 0o777)
