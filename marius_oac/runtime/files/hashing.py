"""Checks of several files at once: each thread hashes a file of its own, as the hash of one can't be shared.

Guarantees:
- When a call returns or raises, none of its threads is left.
- The first Ctrl-C that raises KeyboardInterrupt ends it after the blocks that are held.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from marius_oac.errors import InputError
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.files.untrusted import AT_ONCE, Error, ListedFile, check_file, open_regular

MOST_THREADS = 4  # each holds a block of a file
Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(work: Callable[[Item, Callable[[], None]], Result], items: Sequence[Item]) -> list[Result]:
    """The results of `work(item, go_on)`, in order; raises the first error in that order. `go_on`, which `work` calls
    after each block, raises Closed once it is all in vain."""
    stopped = threading.Event()

    def go_on() -> None:
        if stopped.is_set():
            raise Closed

    with ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0))), "files") as threads:
        waiting = [threads.submit(work, item, go_on) for item in items]
        try:
            return [each.result() for each in waiting]
        except BaseException:
            stopped.set()
            raise


def check_files(
    files: Mapping[Path, ListedFile],
    error: Error = InputError,
    same: Mapping[str, Path] | None = None,
    read: Callable[[int], object] = lambda size: None,
) -> dict[Path, InputError]:
    """`untrusted.check_file` for each file; returns the errors of those that are damaged.

    Args:
        same: files that have been checked, by their checksum. What shall have the checksum of one of them, and has its
            very bytes, is not hashed.
        read: called with the number of bytes read, after each block; by one thread at a time.
    """
    lock, known = threading.Lock(), same or {}

    def check(path: Path, go_on: Callable[[], None]) -> InputError | None:
        def step(size: int) -> None:
            go_on()
            with lock:
                read(size)

        listed = files[path]
        if listed.checksum in known and _same_bytes(path, known[listed.checksum], listed.bytes, step):
            return None
        try:
            check_file(path, listed, error, read=step)
        except InputError as found:
            return found
        return None

    # The largest first: a thread that is left alone with it would make the others wait.
    order = sorted(files, key=lambda path: -files[path].bytes)
    found = dict(zip(order, on_threads(check, order), strict=True))
    return {path: each for path in files if (each := found[path]) is not None}


def _same_bytes(path: Path, other: Path, size: int, step: Callable[[int], None]) -> bool:
    """Whether two files have these many bytes, and the same ones."""
    try:
        with open_regular(path) as ours, open_regular(other) as theirs:
            if not os.fstat(ours.fileno()).st_size == os.fstat(theirs.fileno()).st_size == size:
                return False
            left = size
            while left:
                content = ours.read(min(left, AT_ONCE))
                if not content or content != theirs.read(len(content)):
                    return False
                step(len(content))
                left -= len(content)
            return True
    except (OSError, InputError):  # `check_file` says what is wrong
        return False


def described(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as manifests list them; flushes it to the disk."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}
