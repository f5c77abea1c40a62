"""Folders of arrays derived from a graph or a log: made once, checked each time they are opened, made again if damaged.

A folder is made under another name and renamed once it is on the disk, so a folder that exists is complete. Its
manifest says what it belongs to, and the size and SHA-256 of every file. If several processes need it, one makes it and
the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import (
    check_no_link,
    disk_errors,
    remove_folder,
    sealed,
    sync,
    unfinished_here,
    write_flushed,
)
from marius_oac.runtime.files.untrusted import (
    DescribedFile,
    open_regular,
    parse_sealed,
    read_bounded,
    typed,
)
from marius_oac.runtime.files.untrusted_arrays import map_npy


@dataclass(frozen=True)
class DerivedArray:
    """A .npy file of such a folder: the types that it may have, and its shape. A length of None may be any length."""

    name: str
    dtypes: tuple[type | np.dtype, ...]
    shape: tuple[int | None, ...]


def open_derived(
    folder: Path,
    manifest: str,
    wanted: dict[str, Any],
    arrays: Sequence[DerivedArray],
    make: Callable[[Path], None],
    again: str,
    sound: Callable[..., bool] = lambda *arrays: True,
) -> list[np.ndarray]:
    """The arrays in `folder`, mapped read-only, in the order of `arrays`. They are made first if the folder is missing
    or damaged.

    Args:
        folder: holds only these files.
        manifest: the name of the manifest.
        wanted: the keys and values that the manifest must have; JSON.
        make: writes the files into the folder that it is given.
        again: the end of the warning that gives the reason for making them again.
        sound: whether the arrays, in their order, hold values that kernels may use. Checksums don't show that: the
            writer of the folder may have written them too.

    Raises:
        InputError: the disk is full, or can't be written.
    """
    found = sound_derived(folder, manifest, wanted, arrays, sound)
    if isinstance(found, str):
        with disk_errors(folder), _alone_in(folder.parent):
            found = sound_derived(folder, manifest, wanted, arrays, sound)  # by now another process may have made it
            if isinstance(found, str):
                if folder.exists():
                    logger.warning(f"{folder}: {found}; {again}")
                _make(folder, manifest, wanted, [each.name for each in arrays], make)
                found = [map_npy(folder / each.name, each.dtypes, each.shape) for each in arrays]
    return found


def read_derived(path: Path) -> dict[str, Any]:
    """The manifest of such a folder. Raises InputError if it is damaged, OSError if it can't be read."""
    return parse_sealed(read_bounded(path), path, dict[str, Any])


def derived_files(tree: dict[str, Any], path: Path) -> dict[str, DescribedFile]:
    """The files that a manifest lists, by name. Raises InputError if it lists none."""
    files = {name: typed(entry, path, DescribedFile) for name, entry in tree.items() if name.endswith(".npy")}
    if not files:
        raise InputError("is damaged: it lists no files", path)
    return files


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Keeps other processes out of such a block for this folder. The lock is released when the process ends."""
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
        logger.info(f"waiting for another process that writes to {parent}")
        fcntl.flock(opened, fcntl.LOCK_EX)
    except OSError as error:  # some network file systems lock no folders
        logger.warning(f"{parent} can't be locked ({error.strerror}): let one run at a time begin on it")


def _make(
    folder: Path, manifest: str, wanted: dict[str, Any], names: Sequence[str], make: Callable[[Path], None]
) -> None:
    check_no_link(folder)
    temporary = unfinished_here(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        make(temporary)
        content = wanted | {name: _digest(temporary / name) for name in names}
        write_flushed(temporary / manifest, sealed(content))
        sync(temporary)
        remove_folder(folder, (manifest, *names))
        os.rename(temporary, folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sound_derived(
    folder: Path, manifest: str, wanted: dict[str, Any], arrays: Sequence[DerivedArray], sound: Callable[..., bool]
) -> list[np.ndarray] | str:
    """As `open_derived` where nothing is made: the arrays, or what is wrong with the folder."""
    if not folder.exists():
        return "isn't there"
    try:
        content = read_derived(folder / manifest)
        if {key: content.get(key) for key in wanted} != wanted:
            return "belongs to another graph or file, or is of another version"
        for each in arrays:
            if _digest(folder / each.name) != content.get(each.name):
                return f"{each.name} is damaged"
        found: list[np.ndarray] = [map_npy(folder / each.name, each.dtypes, each.shape) for each in arrays]
    except (OSError, InputError):
        return "is damaged"
    return found if sound(*found) else "holds numbers that are out of range"


def _digest(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "sha256": digest}
