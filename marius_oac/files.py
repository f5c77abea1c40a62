"""Files that are there whole or not at all: written under a temporary name, flushed to the disk, renamed."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.errors import InputError


class NpyWriter:
    """A .npy file written in blocks of rows and hashed on the way."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type):
        self.path, self._file, self._digest = path, open(path, "wb"), hashlib.sha256()  # noqa: SIM115 - see __exit__
        header = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        self._add(header.getvalue())

    def write(self, rows: np.ndarray) -> None:
        """Adds rows, [n, ...] of the file's type."""
        self._add(np.ascontiguousarray(rows))

    def finish(self) -> dict[str, Any]:
        """Flushes the file to the disk; returns its size and SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest()}

    def _add(self, content: bytes | np.ndarray) -> None:
        self._digest.update(content)
        self._file.write(content)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def mapped_npy(path: Path, shape: tuple[int, ...], dtype: type | np.dtype) -> np.ndarray:
    """A .npy file of zeros, mapped to be written. Its place on the disk is taken: a full disk is an error here, where
    later it would be the end of the process."""
    dtype = np.dtype(dtype)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
        file.flush()
        os.posix_fallocate(file.fileno(), 0, file.tell() + math.prod(shape) * dtype.itemsize)
    return np.load(path, mmap_mode="r+", allow_pickle=False)


def unfinished(path: Path) -> Path:
    """The name under which a file or folder is written, or removed."""
    return path.with_name(f".{path.name}.unfinished")


def clean(folder: Path) -> None:
    """Removes what a killed process left unfinished in a folder."""
    for path in folder.glob(unfinished(Path("*")).name):
        with disk_errors(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file under a temporary name, flushes it to the disk and renames it.

    Raises:
        InputError: the disk is full, or can't be written; the file is as it was.
    """
    temporary = unfinished(path)
    with disk_errors(path):
        try:
            write_flushed(temporary, content.encode() if isinstance(content, str) else content)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_flushed(path: Path, content: bytes) -> None:
    """Writes a file and waits until the disk has it."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, where they are missing; a power cut does not take them away again."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    for each in missing:
        sync(each.parent)


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, so that what was made or renamed in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Within the block a failure of the disk (full, read-only, broken) becomes an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", path) from error
