"""Folders for temporary files that are removed with their process, or, where it was killed, by the next one.

A folder lies alone in another one, which is locked (flock(2)) for as long as the process lives: so whoever uses the
folder may lock it. Whoever makes one removes those of this user in the same place that nobody holds. Where the file
system has no locks, a killed process's folder stays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = f"marius-oac.scratch.{socket.gethostname()}."  # locks of some shared file systems are a machine's own


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for the time of the block, below $TMPDIR."""
    _sweep(Path(tempfile.gettempdir()))
    held, lock = _made()
    try:
        (held / "files").mkdir(0o700)
        yield held / "files"
    finally:
        shutil.rmtree(held, ignore_errors=True)
        os.close(lock)


def _made() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):  # another process has taken it for one that nobody holds
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _sweep(place: Path) -> None:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with suppress(OSError):  # a link, another user's, held, or removed meanwhile
                    _remove_if_free(entry.path)


def _remove_if_free(path: str) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(lock)
