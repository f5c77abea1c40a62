"""Memory of one process that others of the same user and machine read, by process_vm_readv(2).

Guarantees: nothing is copied in between, and nothing is written. Its owner keeps the memory, and leaves it unchanged,
until the others have read it. Yama (`kernel.yama.ptrace_scope` 1) lets a process be read by its parents alone; others
may while it is within `readable`.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from marius_oac.errors import NodeLost

_PR_SET_PTRACER, _ANYBODY = 0x59616D61, -1  # of <sys/prctl.h>


class _Range(ctypes.Structure):
    """`iovec` of <sys/uio.h>."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@dataclass(frozen=True)
class PeerMemory:
    """A range of memory of process `pid`, this one or another."""

    pid: int
    address: int
    num_bytes: int

    @classmethod
    def of(cls, array: np.ndarray) -> PeerMemory:
        """That of a C-contiguous array of this process. The caller keeps the array."""
        if not array.flags.c_contiguous:
            raise ValueError("an array whose memory is read must be contiguous")
        return cls(os.getpid(), array.ctypes.data, array.nbytes)

    def read(self, first: int, into: np.ndarray) -> None:
        """Copies the bytes from `first` on to `into`, uint8 [n], contiguous.

        Raises:
            NodeLost: the process has ended.
            OSError: the kernel does not permit it; see `may_read`.
        """
        if into.dtype != np.uint8 or not into.flags.c_contiguous:
            raise ValueError(f"{into.dtype} can't be read into, only contiguous uint8")
        if not 0 <= first <= first + into.size <= self.num_bytes:
            raise ValueError(f"bytes {first} to {first + into.size} are not within {self.num_bytes}")
        if self.pid == os.getpid():
            ctypes.memmove(into.ctypes.data, self.address + first, into.size)
            return
        done = 0
        while done < into.size:  # of more than 2**31 bytes the kernel reads a part
            try:
                done += _read(self.pid, self.address + first + done, into.ctypes.data + done, into.size - done)
            except ProcessLookupError as error:
                raise NodeLost(f"of process {self.pid}", "has ended while its memory was read") from error


def may_read(pid: int) -> bool:
    """Whether the kernel lets this process read memory of another one."""
    byte = ctypes.c_char()
    try:
        _read(pid, 0, ctypes.addressof(byte), 1)
    except OSError as error:  # the permission is checked first, then the address, at which nothing is
        return error.errno == errno.EFAULT
    return False


@contextmanager
def readable() -> Iterator[None]:
    """Within the block other processes of this user may read memory of this process."""
    _set_reader(_ANYBODY)
    try:
        yield
    finally:
        _set_reader(0)


def _set_reader(pid: int) -> None:
    prctl = getattr(_libc(), "prctl", None)
    if prctl is not None:  # without Yama the kernel refuses, and all of this user may read anyway
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid & 2**64 - 1), 0, 0, 0)


def _read(pid: int, address: int, to: int, size: int) -> int:
    """Returns how many bytes were read, at least one."""
    read = getattr(_libc(), "process_vm_readv", None)
    if read is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    here, there = _Range(to, size), _Range(address, size)
    count = int(read(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    if count <= 0:
        number = ctypes.get_errno() if count else errno.EFAULT
        raise OSError(number, os.strerror(number))
    return count


@cache
def _libc() -> Any:
    found = ctypes.CDLL(None, use_errno=True)
    if hasattr(found, "process_vm_readv"):
        found.process_vm_readv.restype = ctypes.c_ssize_t
        found.process_vm_readv.argtypes = (
            ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong,
        )  # fmt: skip
    return found
