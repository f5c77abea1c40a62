"""Locks on checkpoints that are being read, so that a training run does not remove them.

A reader holds a shared lock (flock(2)) on the checkpoint's manifest, which it has opened for reading alone: it needs no
right to write, and the lock ends with its process. To remove a checkpoint, a run takes the exclusive lock first, and
holds it until the checkpoint has lost its name.

Guarantees:
- A checkpoint that was pinned under its name keeps it, with all of its files and pages, until the pin is closed.
- Nothing waits for a reader. A reader waits for a removal only while a folder is renamed.
- On a file system without locks, a reader of a checkpoint that is removed gets an error.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marius_oac.errors import CheckpointError


class Missing(CheckpointError):
    """There is no such checkpoint, or it has been removed since its name was read."""


class Pin:
    """Keeps a checkpoint from being removed until `close`, or until this object is garbage.

    Args:
        manifest: the checkpoint's.

    Raises:
        Missing: the checkpoint has been removed.
    """

    def __init__(self, manifest: Path):
        try:
            descriptor = os.open(manifest, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if not manifest.parent.exists():
                raise Missing("has just been removed", manifest.parent) from None
            raise CheckpointError(f"is damaged ({error.strerror})", manifest) from None
        self.close = weakref.finalize(self, os.close, descriptor)
        """Releases the checkpoint; may be called again."""
        _lock(descriptor, fcntl.LOCK_SH)
        if not _is(manifest, descriptor):  # it was removed before the lock was acquired
            self.close()
            raise Missing("has just been removed", manifest.parent)


@contextmanager
def alone_with(manifest: Path) -> Iterator[bool]:
    """Within the block no process can pin the checkpoint of this manifest. Yields False if one has pinned it
    already."""
    try:
        try:
            descriptor = os.open(manifest, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # as NFS wants it for the lock
        except PermissionError:
            descriptor = os.open(manifest, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a damaged checkpoint has no manifest, and no readers
        yield True
        return
    try:
        yield _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    """Whether the lock was acquired, or the file system has none."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False
