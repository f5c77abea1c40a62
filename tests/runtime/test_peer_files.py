"""Files that one process has open, and another one opens."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from marius_oac.runtime.machine import peer_files
from marius_oac.runtime.machine.peer_files import Nonce, PeerFile

OWNER = """
import os, sys
from marius_oac.runtime.machine.peer_files import Nonce
nonce = Nonce.made()
os.mkfifo(sys.argv[1])
pipe = os.open(sys.argv[1], os.O_RDWR)
os.write(pipe, bytes(100))  # whoever opens and reads it does not wait
file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
os.unlink(sys.argv[2])
print(nonce.descriptor, nonce.content, pipe, file, flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.usefixtures("forked_programs")


@pytest.fixture
def owner(tmp_path):
    """A process, its nonce, and its descriptors of a pipe and of a file that has no name any more."""
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
    own = Nonce.made()
    try:
        assert own.seen() and own.content != there.content and own.pid == os.getpid()
        assert not replace(own, content=own.content[:-2]).seen()
        for pid in (process.pid, 1 << 22):
            assert not replace(own, pid=pid).seen()
    finally:
        os.close(own.descriptor)
    assert not own.seen()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not there.seen()


def test_what_may_not_be_opened_is_not_seen(owner, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(peer_files.os, "stat", refused)
    assert not owner[1].seen()


def test_a_file_of_another_process_is_the_very_same(owner):
    process, _, pipe, file = owner
    place = PeerFile(process.pid, file).path()
    with open(place, "r+b") as mine:
        mine.write(b"told")
    with open(place, "rb") as again:
        assert again.read() == b"told"
    with pytest.raises(OSError, match="no regular file"):
        PeerFile(process.pid, pipe).path()  # one without a writer would be waited for
    with pytest.raises(FileNotFoundError):
        PeerFile(process.pid, 1000).path()
