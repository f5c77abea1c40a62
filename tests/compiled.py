"""Kernels that are not in Numba's cache are compiled once, however many processes of a test run want them at once.

Workers, and nodes that a test starts, begin with the same kernels. Who comes second waits, and finds the first one's.
"""

import fcntl
import hashlib
import os
from pathlib import Path

from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

_FILE = Path(__file__).parent / "__pycache__" / "compiled.lock"
_compile = CPUDispatcher.compile
_open: dict[int, int] = {}


def _compile_once(dispatcher, signature):
    """A lock of the system's for each function; its holder waits for nothing but functions that this one calls."""
    kept = getattr(dispatcher._cache, "_cache_file", None)
    if kept is None:
        return _compile(dispatcher, signature)
    with global_compiler_lock:
        file, place = lock_file(), place_of(kept._index_path)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
        try:
            return _compile(dispatcher, signature)
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


def lock_file() -> int:
    """Each process opens it for itself."""
    if os.getpid() not in _open:
        _FILE.parent.mkdir(exist_ok=True)
        _open[os.getpid()] = os.open(_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    return _open[os.getpid()]


def place_of(index: str) -> int:
    """The byte of the file whose lock is that of the function with this index of Numba's."""
    return int.from_bytes(hashlib.sha256(index.encode()).digest()[:7], "little")


def once() -> None:
    """From now on in this process, and in those that it forks."""
    CPUDispatcher.compile = _compile_once
