"""Memory of other processes: read as it is, within its bounds, while its owner lives and the kernel permits it."""

import ctypes
import errno
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.errors import NodeLost
from marius_oac.runtime.machine import peer_memory
from marius_oac.runtime.machine.peer_memory import PeerMemory, may_read, readable

OWNER = """
import sys
import numpy as np
array = (np.arange(100_000) % 251).astype(np.uint8)
print(array.ctypes.data, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def owner():
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield PeerMemory(process.pid, int(process.stdout.readline()), 100_000)
    finally:
        process.kill()
        process.communicate()


EVERY = (np.arange(100_000) % 251).astype(np.uint8)


@given(st.integers(0, 100_000), st.integers(0, 100_000), st.sampled_from([7, 4096, 1 << 31]), st.booleans())
def test_any_range_is_read_also_where_the_kernel_reads_a_part(owner, first, end, at_once, own):
    first, end = sorted((first, end))
    memory = PeerMemory.of(EVERY) if own else owner
    if at_once == 7:
        end = min(end, first + 100)
    found = np.zeros(end - first + 2, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        real = peer_memory._read
        patch.setattr(peer_memory, "_read", lambda pid, there, here, size: real(pid, there, here, min(size, at_once)))
        memory.read(first, found[1:-1])
    assert found[[0, -1]].tolist() == [0, 0] and (found[1:-1] == EVERY[first:end]).all()


@pytest.mark.parametrize(
    ("first", "into"),
    [(-1, np.empty(2, np.uint8)), (99_999, np.empty(2, np.uint8)), (0, np.empty(2, np.int8)),
     (0, np.empty(4, np.uint8)[::2])],
)  # fmt: skip
def test_what_is_not_within_the_memory_or_no_buffer_is_refused(owner, first, into):
    with pytest.raises(ValueError):
        owner.read(first, into)


def test_an_array_of_several_pieces_is_refused():
    with pytest.raises(ValueError, match="contiguous"):
        PeerMemory.of(EVERY[::2])


def test_an_owner_that_has_ended_is_lost(owner):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(NodeLost, match=f"node of process {process.pid}: has ended while its memory was read"):
        replace(owner, pid=process.pid).read(0, np.empty(1, np.uint8))
    assert not may_read(process.pid)


def test_what_the_kernel_refuses_is_an_error_and_known_before(owner, monkeypatch):
    assert may_read(owner.pid) and may_read(os.getpid())

    def refuses(*_):
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(peer_memory, "_libc", lambda: SimpleNamespace(process_vm_readv=refuses))
    assert not may_read(owner.pid)
    with pytest.raises(PermissionError):
        owner.read(0, np.empty(1, np.uint8))
    monkeypatch.setattr(peer_memory, "_libc", lambda: SimpleNamespace(process_vm_readv=lambda *_: 0))
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        owner.read(0, np.empty(1, np.uint8))
    monkeypatch.setattr(peer_memory, "_libc", SimpleNamespace)  # of another system
    assert not may_read(owner.pid)
    with readable(), pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        owner.read(0, np.empty(1, np.uint8))


def test_others_may_read_within_the_block_alone(monkeypatch):
    """As Yama is told; kernels without it refuse the request."""
    said = []
    libc = SimpleNamespace(prctl=lambda option, pid, *_: said.append((option, pid.value)))
    monkeypatch.setattr(peer_memory, "_libc", lambda: libc)
    with pytest.raises(KeyError), readable():
        assert said == [(0x59616D61, 2**64 - 1)]
        raise KeyError
    assert said[1:] == [(0x59616D61, 0)]
