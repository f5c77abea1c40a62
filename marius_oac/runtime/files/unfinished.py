"""Unfinished folders: made beside their final name; one whose process was killed is removed by the next process.

    .NAME.XXXXXXXX.part      XXXXXXXX: eight hexadecimal digits

Guarantees:
- Several processes may make a folder of the same name at once, each in its own part.
- A part whose process lives is not touched: the process holds a lock on it (flock(2)), which ends with the process.
  Where a file system has no such locks nothing is removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from marius_oac.runtime.files.atomic import make_folder, sync


@contextmanager
def new_part(out: Path) -> Iterator[Path]:
    """A new, empty part of `out`, removed at the end if it is still there. Removes parts of killed processes first.

    Raises:
        OSError: it can't be made.
    """
    make_folder(out.parent)
    for path in _parts(out):
        _remove_if_abandoned(path)
    with ExitStack() as stack:
        yield _begin(out, stack)


def flush_folder(folder: Path) -> None:
    """Flushes everything in a folder to the disk."""
    for path, _, names in os.walk(folder):
        for name in (*names, ""):
            sync(Path(path, name))


def _parts(out: Path) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}\.part")
    return [path for path in out.parent.iterdir() if pattern.fullmatch(path.name)]


def _begin(out: Path, stack: ExitStack) -> Path:
    """Makes a part and locks it, so that no other process takes it for abandoned. `stack` removes it and releases the
    lock, also where a signal comes before the lock."""
    while True:
        folder = out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}.part"
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir()
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process took it for abandoned already
            continue
        stack.callback(os.close, descriptor)
        _lock(descriptor, fcntl.LOCK_EX)
        if folder.is_dir():  # else another process was quicker to take the lock, and to remove it
            return folder


def _remove_if_abandoned(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # no folder, or gone by now
        return
    try:
        if _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except OSError:  # another process has it, or there are no locks here
        return False
    return True
