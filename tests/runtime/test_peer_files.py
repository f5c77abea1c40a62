"""Files that one process has open, and another one opens."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pytest

from marius_oac.runtime.files.npy import mapped_again, mapped_npy
from marius_oac.runtime.machine import peer_files
from marius_oac.runtime.machine.peer_files import Nonce, PeerFile

OWNER = """
import os, sys, tempfile
from marius_oac.runtime.machine.peer_files import Nonce
kept = tempfile.TemporaryFile(buffering=0)
nonce = Nonce.written_to(kept)
os.mkfifo(sys.argv[1])
pipe = os.open(sys.argv[1], os.O_RDWR)
os.write(pipe, bytes(100))  # whoever opens and reads it does not wait
file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
print(nonce.descriptor, nonce.content, pipe, file, flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.usefixtures("forked_programs")


@pytest.fixture
def owner(tmp_path):
    """A process, its nonce, and its descriptors of a pipe and of a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "pipe"), str(tmp_path / "file")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        nonce, content, pipe, file = process.stdout.readline().split()
        yield process, Nonce(process.pid, int(nonce), content), int(pipe), int(file)
    finally:
        process.kill()
        process.communicate()


def test_a_nonce_is_seen_in_the_process_that_shows_it_alone(owner, monkeypatch):
    """Process ids are those of a container: another one's may be that of any process here, also of this one."""
    process, there, pipe, file = owner
    assert there.seen() and len(there.content) == 32
    assert not replace(there, content=bytes(16).hex()).seen()
    for descriptor in (pipe, file, 1000):
        assert not replace(there, descriptor=descriptor).seen()
    with tempfile.TemporaryFile(buffering=0) as kept:
        own = Nonce.written_to(kept)
        assert own.seen() and own.content != there.content and own.pid == os.getpid()
        assert not replace(own, content=own.content[:-2]).seen()
        for pid in (process.pid, 1 << 22):
            assert not replace(own, pid=pid).seen()
    assert not own.seen()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not there.seen()


def test_what_may_not_be_opened_is_not_seen(owner, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(peer_files.os, "stat", refused)
    assert not owner[1].seen()


def test_a_file_of_another_process_is_the_very_same_and_has_the_name(owner, tmp_path):
    process, nonce, pipe, file = owner
    place = PeerFile(process.pid, file)
    with place.open("r+b", "file") as mine:
        mine.write(b"told")
    with place.open("rb") as again:
        assert again.read() == b"told" and (tmp_path / "file").read_bytes() == b"told"
    for descriptor, name in ((pipe, "pipe"), (pipe, None), (file, "fil"), (nonce.descriptor, "file")):
        with pytest.raises(OSError, match="is not the file that is shared"):
            PeerFile(process.pid, descriptor).open("r+b", name)  # to open a pipe without a writer would wait for one
    with pytest.raises(FileNotFoundError):
        PeerFile(process.pid, 1000).open("rb")
    with open(tmp_path / "file", "rb") as own:
        assert PeerFile.of(own) == PeerFile(os.getpid(), own.fileno())


@pytest.mark.parametrize("changed", [None, "shape", "dtype", "content"])
def test_only_the_expected_array_is_mapped_again(tmp_path, changed):
    made = mapped_npy(tmp_path / "file", (3, 2), np.float32)
    if changed == "content":
        (tmp_path / "file").write_bytes(b"no array")
    with open(tmp_path / "file", "r+b") as file:
        about = (3, 3) if changed == "shape" else (3, 2), np.int32 if changed == "dtype" else np.float32
        if changed:
            with pytest.raises(OSError, match="is not the array that is shared"):
                mapped_again(file, *about)
        else:
            mapped_again(file, *about)[1] = 7
            assert made.tolist() == [[0, 0], [7, 7], [0, 0]]
