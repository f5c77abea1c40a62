"""Places memory on NUMA nodes with mbind(2) and get_mempolicy(2), called by their numbers, without a C library.

Guarantees: a range gets the policy that was asked for, or False is returned and one line on standard error says why.
The memory can be used in both cases.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from marius_oac.runtime.console import logger
from marius_oac.runtime.machine.sysfs import format_list

# (mbind, get_mempolicy) of the kernel's tables of system calls
_CALLS = {"x86_64": (237, 239), "aarch64": (235, 236), "riscv64": (235, 236), "ppc64le": (259, 260)}
_PREFERRED, _INTERLEAVE = 1, 3  # MPOL_* of <linux/mempolicy.h>
_OF_ADDRESS, _MEMS_ALLOWED = 1 << 1, 1 << 2  # MPOL_F_ADDR, MPOL_F_MEMS_ALLOWED
_NODES = 1024  # bits of a mask; no kernel has more nodes (CONFIG_NODES_SHIFT is at most 10)
_WORDS = ctypes.c_ulong * (_NODES // 64)


@dataclass(frozen=True)
class MemoryPolicy:
    """The nodes on which pages are placed when they are first written.

    Attributes:
        kind: "interleave" places them on the nodes in turn, "local" on the single node given, or elsewhere if it is
            full.
        nodes: numbers of the nodes.
    """

    kind: str
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in ("interleave", "local") or not self.nodes or (self.kind == "local" and len(self.nodes) > 1):
            raise ValueError(f"no policy: {self}")

    def __str__(self) -> str:
        where = f"node{'s' if len(self.nodes) > 1 else ''} {format_list(self.nodes)}"
        return f"interleaved over {where}" if self.kind == "interleave" else f"local to {where}"


def memory_policy(address: int, num_bytes: int, policy: MemoryPolicy | None, what: str = "memory") -> bool:
    """Sets the policy of the pages in [address, address + num_bytes). Call it before they are first written.

    Pages already written stay where they are, and so do those that the range covers only in part.

    Args:
        policy: None changes nothing.
        what: name of the memory's owner in the message.

    Returns:
        Whether the kernel has accepted the policy. If not, one line on standard error says why, once.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if policy is None or last <= first:
        return False
    mode = _INTERLEAVE if policy.kind == "interleave" else _PREFERRED
    try:
        _mbind(first, last - first, mode, policy.nodes)
        found = _policy_at(first)
    except OSError as error:
        log_once(f"binding: {what} is not {policy}: {_reason(error)}")
        return False
    if found != (mode, policy.nodes):
        log_once(f"binding: {what} is not {policy}: of these nodes it may use {format_list(found[1]) or 'none'}")
        return False
    return True


@functools.cache
def log_once(line: str) -> None:
    """Logs a line, once per process."""
    logger.info(line)


def allowed_nodes() -> tuple[int, ...] | None:
    """The nodes whose memory this process may use; None if the kernel doesn't say."""
    words = _WORDS()
    try:
        _call(1, None, words, _NODES, None, _MEMS_ALLOWED)
    except OSError:
        return None
    return _numbers(words)


def _mbind(address: int, num_bytes: int, mode: int, nodes: Iterable[int]) -> None:
    words = _WORDS()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    # The kernel reads one bit less than the given length of the mask.
    _call(0, address, num_bytes, mode, words, _NODES + 1, 0)


def _policy_at(address: int) -> tuple[int, tuple[int, ...]]:
    mode, words = ctypes.c_int(), _WORDS()
    _call(1, ctypes.byref(mode), words, _NODES, address, _OF_ADDRESS)
    return mode.value, _numbers(words)


def _numbers(words: ctypes.Array[ctypes.c_ulong]) -> tuple[int, ...]:
    return tuple(node for node in range(_NODES) if words[node // 64] >> node % 64 & 1)


def _call(which: int, *arguments: object) -> None:
    """mbind (0) or get_mempolicy (1). Raises OSError where the kernel refuses, or has no number that we know."""
    if platform.machine() not in _CALLS or sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    libc = ctypes.CDLL(None, use_errno=True)
    words = (_CALLS[platform.machine()][which], *arguments)  # whole machine words: a bare int would be 32 bits of one
    if libc.syscall(*(ctypes.c_ulong(word) if isinstance(word, int) else word for word in words)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _reason(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return "the kernel does not permit it (in a container: needs the capability SYS_NICE)"
    if error.errno == errno.ENOSYS:
        return "this kernel has no memory policies, or none that we know of"
    if error.errno == errno.EINVAL:
        return "the process may not use the memory of these nodes, or there are no such nodes"
    return str(error.strerror)
