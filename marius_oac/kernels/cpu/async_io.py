"""Linux's asynchronous direct I/O (`io_submit(2)`): one thread has many requests in flight.

A thread that waits for each request by itself is woken 60,000 times a second, and each time another thread loses its
core: training on two cores lost a tenth of its speed to that. Where the system has no such calls, or the JIT is off,
`supported` is False and threads wait for one request each.
"""

import ctypes
import functools
import os
import platform

import numpy as np
from numba import config

from marius_oac.kernels.cpu import atomics
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.system_calls import system_call

MOST_REQUESTS = 128
ROOM = 16 * MOST_REQUESTS
"""Length of the work array of `submit_and_wait`, int64: control blocks, their addresses, vectors, events."""

_SUPPORTED_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_SETUP, _DESTROY, _SUBMIT, _GET_EVENTS = _SUPPORTED_CALLS.get(platform.machine(), (-1, -1, -1, -1))
_ADDRESSES, VECTORS, _EVENTS = 8 * MOST_REQUESTS, 9 * MOST_REQUESTS, 11 * MOST_REQUESTS
_READ, _WRITE = 7, 8  # IOCB_CMD_PREADV, IOCB_CMD_PWRITEV
_INTERRUPTED = 4  # EINTR


class Context:
    """A queue of the operating system, for one thread, and its work array `room`, int64 [ROOM]."""

    def __init__(self) -> None:
        """Raises OSError where the system has no such queue, or none left (`fs.aio-max-nr`)."""
        self._libc, handle = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong(0)
        if self._libc.syscall(ctypes.c_long(_SETUP), ctypes.c_long(MOST_REQUESTS), ctypes.byref(handle)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.handle, self.room = handle.value, np.zeros(ROOM, np.int64)

    def close(self) -> None:
        """Gives the queue back to the system, which takes it 25 ms."""
        self._libc.syscall(ctypes.c_long(_DESTROY), ctypes.c_ulong(self.handle))


_IDLE: list[Context] = []
_MOST_IDLE = 4
os.register_at_fork(after_in_child=_IDLE.clear)  # a queue is its process's


def take() -> Context:
    """An idle queue, or a new one.

    Raises:
        OSError: as `Context`.
    """
    try:
        return _IDLE.pop()
    except IndexError:
        return Context()


def give_back(context: Context) -> None:
    """For who is next; nothing may be in flight. Of many, the system gets some back."""
    if len(_IDLE) < _MOST_IDLE:
        _IDLE.append(context)
    else:
        context.close()


@functools.cache
def supported() -> bool:
    """Whether this machine has such queues."""
    if _SETUP < 0 or config.DISABLE_JIT:
        return False
    try:
        give_back(take())
    except OSError:
        return False
    return True


@compiled
def prepare(room, number, write, descriptor, first, count, offset, tag):
    """Fills in request `number` (`struct iocb`): vectors [first, first + count) of `room`, at `offset` of a file."""
    base, at = atomics.address_of(room), 8 * number
    room[at], room[at + 1] = tag, 0
    room[at + 2] = (_WRITE if write else _READ) | (descriptor << 32)
    room[at + 3], room[at + 4], room[at + 5] = base + 8 * (VECTORS + 2 * first), count, offset
    room[at + 6], room[at + 7] = 0, 0
    room[_ADDRESSES + number] = base + 8 * at


@compiled
def submit_and_wait(handle, room, requests, window, tags, results):
    """Submits requests [0, requests), at most `window` at once; fills in `tags` and `results` in the order of their
    ends.

    A result is the number of bytes moved, or minus errno. Returns 0, or the errno of the queue itself; in both cases no
    request is in flight any more.
    """
    base, sent, ended, failed = atomics.address_of(room), 0, 0, 0
    while ended < sent or (sent < requests and not failed):
        more = min(requests, ended + window) - sent
        if more > 0 and not failed:
            taken = system_call(_SUBMIT, handle, more, base + 8 * (_ADDRESSES + sent), 0, 0)
            if taken > 0:
                sent += taken
            elif sent == ended:
                failed = -taken
                continue
        left = sent - ended
        # Half of them, so that the thread is woken seldom and the disk never idles.
        least = left if sent == requests else max(1, left // 2)
        found = system_call(_GET_EVENTS, handle, least, left, base + 8 * _EVENTS, 0)
        if found == -_INTERRUPTED:
            continue
        if found < 0:
            return -found
        for i in range(found):
            tags[ended + i], results[ended + i] = room[_EVENTS + 4 * i], room[_EVENTS + 4 * i + 2]
        ended += found
    return failed
