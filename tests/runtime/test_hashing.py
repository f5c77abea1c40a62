"""Checks of several files at once: each damage is found, whoever reads the file, and nothing else."""

import hashlib
import os
import threading

import pytest

from marius_oac.errors import CheckpointError, InputError
from marius_oac.runtime.files import hashing, untrusted
from marius_oac.runtime.files.untrusted import DescribedFile

SIZE = 1000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(untrusted, "AT_ONCE", 64)
    monkeypatch.setattr(hashing, "AT_ONCE", 64)


def files_of(folder, names="abcdef"):
    """Files of some bytes, with what a manifest says of them."""
    folder.mkdir()
    listed = {}
    for number, name in enumerate(names):
        content = bytes([number]) * (SIZE + number)
        (folder / name).write_bytes(content)
        listed[folder / name] = DescribedFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    return listed


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def damage(folder):
    flip(folder / "b", SIZE)
    (folder / "d").unlink()
    (folder / "e").write_bytes(b"short")
    os.mkfifo(folder / "pipe")
    os.replace(folder / "pipe", folder / "f")


def test_every_damage_is_found_in_order(tmp_path):
    listed, counts = files_of(tmp_path / "a"), []
    assert hashing.check_files(listed, read=counts.append) == {}
    assert sum(counts) == sum(each.bytes for each in listed.values())
    damage(tmp_path / "a")
    found = hashing.check_files(listed, CheckpointError)
    assert [path.name for path in found] == ["b", "d", "e", "f"]
    told = {path.name: str(error).removeprefix(f"{path}: ") for path, error in found.items()}
    assert told["b"] == "is damaged: its checksum differs from the one it was written with"
    assert told["d"] == "is missing" and "5 bytes, 1,004 are expected" in told["e"] and "pipe" in told["f"]
    assert all(isinstance(error, CheckpointError) for error in found.values())


@pytest.mark.parametrize("at", [0, 500, SIZE - 1])
def test_what_equals_a_checked_file_is_not_hashed_and_what_does_not_is(tmp_path, monkeypatch, at):
    ours, theirs = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    same, counts, hashed = {each.sha256: path for path, each in ours.items()}, [], []
    plain = hashing.check_file

    def check_file(path, *rest, **more):
        hashed.append(path.name)
        plain(path, *rest, **more)

    monkeypatch.setattr(hashing, "check_file", check_file)
    assert hashing.check_files(theirs, same=same, read=counts.append) == {} and hashed == []
    assert sum(counts) == sum(each.bytes for each in theirs.values())
    flip(tmp_path / "a" / "c", at)  # since it was checked
    flip(tmp_path / "b" / "e", at)
    (tmp_path / "b" / "a").write_bytes(bytes(SIZE - 1))  # what is there is the same
    found = hashing.check_files(theirs, same=same)
    assert [path.name for path in found] == ["a", "e"] and sorted(hashed) == ["a", "c", "e"]


def test_damage_that_both_have_is_no_equality_of_what_was_written(tmp_path):
    ours, theirs = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    flip(tmp_path / "a" / "c", 5)
    same = {each.sha256: path for path, each in ours.items() if path not in hashing.check_files(ours)}
    flip(tmp_path / "b" / "c", 5)
    assert [path.name for path in hashing.check_files(theirs, same=same)] == ["c"]


def test_files_that_both_grew_are_damaged(tmp_path):
    ours, theirs = files_of(tmp_path / "a", "a"), files_of(tmp_path / "b", "a")
    for path in (*ours, *theirs):
        path.write_bytes(path.read_bytes() + b"more")
    assert len(hashing.check_files(theirs, same={each.sha256: path for path, each in ours.items()})) == 1


def test_results_are_in_order_and_the_first_error_ends_the_others():
    assert hashing.on_threads(lambda item, _: -item, range(20)) == [-item for item in range(20)]

    def fails_or_goes_on(item, go_on):
        if item == 0:
            raise InputError("the first")
        while True:
            go_on()

    with pytest.raises(InputError, match="the first"):
        hashing.on_threads(fails_or_goes_on, [0, 1, 2])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("files")]
