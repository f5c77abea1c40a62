"""What is compiled once, however many processes want it at once.

A run's processes, and those that compile ahead of it (`ahead`), begin with the same kernels. Who wants one that another
process is compiling waits, and loads that one's machine code from Numba's cache. Whatever can't be locked or kept is
compiled by each of them.

The lock is the system's, on one byte of a file in the folder of the cache: it goes with the process that holds it. Its
holder waits for nothing but functions that its own calls, so nobody waits for ever.

What is kept is read without a lock, at any moment. So machine code is written before the index names it, and each
signature has a file of its own: no index names code of other sources or signatures, whoever is killed or writes too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from marius_oac.kernels import ahead
from marius_oac.runtime.standstill import Activity

LOCKS = "marius_oac.lock"


class CacheFile(IndexDataCacheFile):
    """Numba's files of a function: its index, and one with machine code for each signature."""

    def save(self, key: Any, data: Any) -> None:
        """Keeps what was compiled for a key, by which its file is named."""
        number = int.from_bytes(hashlib.sha256(self._dump(key)).digest()[:7], "little")
        name = self._data_name(number)
        self._save_data(name, data)
        overloads = self._load_index()
        if overloads.get(key) != name:
            self._save_index({**overloads, key: name})


def keep(kernel: Any, stamp: str) -> None:
    """Has a kernel's code kept in a `CacheFile`, valid for sources with this stamp."""
    cache = kernel._cache
    base = cache._cache_file._index_name.removesuffix(".nbi")
    cache._cache_file = CacheFile(cache._cache_path, base, stamp)


_open: dict[Path, int] = {}


def compiled(kernel: Any, signature: Any) -> Any:
    """`CPUDispatcher.compile` of a kernel that Numba keeps: from the cache, once it is there, if somebody is at it."""
    with global_compiler_lock:
        if is_kept(kernel, signature):
            return CPUDispatcher.compile(kernel, signature)
        name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"
        with ahead.compiling_here(), Activity(f"kernel {name} is being compiled"), ExitStack() as stack:
            while not is_kept(kernel, signature) and ahead.goes_on():
                pass
            if not is_kept(kernel, signature):
                stack.enter_context(_alone(Path(kernel._cache._cache_file._index_path)))
            return CPUDispatcher.compile(kernel, signature)


def is_kept(kernel: Any, signature: Any) -> bool:
    cache = kernel._cache
    key = cache._index_key(signature, kernel.targetctx.codegen())
    return key in cache._cache_file._load_index()


@contextmanager
def _alone(index: Path) -> Iterator[None]:
    """Within the block no other process compiles the function whose index of Numba's this is."""
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that can't be written, a file system without locks
            file, place = stack.enter_context(_locks(index.parent)), place_of(index.name)
            fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
            stack.callback(fcntl.lockf, file, fcntl.LOCK_UN, 1, place)
        yield


@contextmanager
def _locks(folder: Path) -> Iterator[int]:
    """The file of locks of a folder, open once in a process: to close it would let go of all its locks."""
    if (file := _open.get(folder)) is not None:
        yield file
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = _open[folder] = os.open(folder / LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        del _open[folder]
        os.close(file)


def place_of(name: str) -> int:
    """The byte of the file whose lock is that of the function with this index of Numba's."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
