"""Folders of arrays that follow from a graph: made once, checked when they are opened again, made anew if damaged.

A folder is made under another name and renamed when the disk has it: if it is there, it is whole. Its manifest says
what it belongs to, and size and SHA-256 of every file. Of several processes that need it one makes it; the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.files import disk_errors, sync, unfinished, write_flushed


def open_derived(
    folder: Path, manifest: str, wanted: dict[str, Any], names: Sequence[str], make: Callable[[Path], None], again: str
) -> list[np.ndarray]:
    """The .npy files `names` in `folder`, mapped read-only; they are made first where there are none that are sound.

    Args:
        folder: of these files alone.
        manifest: the name of the manifest.
        wanted: what the folder must belong to; JSON.
        make: writes the files into the folder that it is given.
        again: what is said after the reason when they are made anew.

    Raises:
        InputError: the disk is full, or can't be written.
    """
    if _fault(folder, manifest, wanted, names):
        with disk_errors(folder), _alone_in(folder.parent):
            fault = _fault(folder, manifest, wanted, names)  # by now another process may have made it
            if fault and folder.exists():
                sys.stderr.write(f"note: {folder}: {fault}; {again}\n")
            if fault:
                _make(folder, manifest, wanted, names, make)
    return [np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in names]


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Within the block no other process is in such a block for this folder; a lock that ends with the process."""
    parent.mkdir(parents=True, exist_ok=True)
    opened = os.open(parent, os.O_RDONLY)
    try:
        _lock(opened, parent)
        yield
    finally:
        os.close(opened)


def _lock(opened: int, parent: Path) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"waiting for another process that writes to {parent}\n")
        fcntl.flock(opened, fcntl.LOCK_EX)
    except OSError as error:  # some network file systems lock no folders
        sys.stderr.write(f"note: {parent} can't be locked ({error.strerror}): let one run at a time begin on it\n")


def _make(
    folder: Path, manifest: str, wanted: dict[str, Any], names: Sequence[str], make: Callable[[Path], None]
) -> None:
    temporary = unfinished(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        make(temporary)
        content = wanted | {name: _digest(temporary / name) for name in names}
        write_flushed(temporary / manifest, json.dumps(content, indent=1).encode())
        sync(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _fault(folder: Path, manifest: str, wanted: dict[str, Any], names: Sequence[str]) -> str | None:
    """What is wrong with the folder, if anything."""
    if not folder.exists():
        return "isn't there"
    try:
        content = json.loads((folder / manifest).read_text("utf-8"))
        if {key: content[key] for key in wanted} != wanted:
            return "belongs to another graph or file, or is of another version"
        for name in names:
            if _digest(folder / name) != content[name]:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "is damaged"
    return None


def _digest(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "sha256": digest}
