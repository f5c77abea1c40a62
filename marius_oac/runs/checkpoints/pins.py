"""Checkpoints that somebody reads stay, though a training run beside would remove them.

A reader holds a shared lock (flock(2)) on the checkpoint's manifest, which it has opened for reading alone: it needs no
right to write, and the lock ends with its process. Who removes a checkpoint takes the exclusive lock first, and holds
it until the checkpoint has lost its name.

Guarantees:
- A checkpoint that was pinned under its name keeps it, with all of its files and pages, until the pin is closed.
- Nobody waits for a reader. A reader waits for a removal only while a folder is renamed.
- Where a file system has no locks a reader is told of a checkpoint that goes by the error of reading it.
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
    """A checkpoint that stays until `close`, or until nobody has this object any more.

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
        """Lets go of the checkpoint; twice is the same."""
        _lock(descriptor, fcntl.LOCK_SH)
        if not _is(manifest, descriptor):  # it was removed before the lock was there
            self.close()
            raise Missing("has just been removed", manifest.parent)


@contextmanager
def alone_with(manifest: Path) -> Iterator[bool]:
    """Within the block nobody pins the checkpoint of this manifest; gives False where somebody has pinned it."""
    try:
        try:
            descriptor = os.open(manifest, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # as NFS wants it for the lock
        except PermissionError:
            descriptor = os.open(manifest, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a damaged checkpoint has none, and nobody reads it
        yield True
        return
    try:
        yield _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    """Whether it could be had, or there are no locks here."""
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
