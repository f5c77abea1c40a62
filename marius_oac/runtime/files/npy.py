"""Every .npy file of this program is written here; `untrusted_arrays` reads them.

Files have version 1.0 of the format, and are in C order, with the bytes that NumPy writes.
"""

from __future__ import annotations

import ctypes
import errno
import io
import math
import os
from pathlib import Path
from typing import IO, Any

import numpy as np

from marius_oac.runtime.closing import Closable
from marius_oac.runtime.files.blocks import BlockDigests

_TOGETHER = 16 << 20
"""Bytes of a file that are handed to the disk at once. The kernel alone begins late, by default when a tenth of the
memory waits to be written: whoever writes less would wait for all of it at the end."""
_LIBC = ctypes.CDLL(None)
_SYNC_FILE_RANGE_WRITE = 2  # of <fcntl.h>


def begin_to_write(descriptor: int, start: int, count: int) -> None:
    """Has the kernel begin to write these bytes of a file to the disk, without waiting. It reports no errors: `fsync`,
    which must follow, does."""
    _LIBC.sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


def npy_header(shape: tuple[int, ...], dtype: np.dtype | type) -> bytes:
    """What such a file begins with. NumPy pads it, so that it has room for a larger number of rows."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def npy_bytes(array: np.ndarray) -> bytes:
    """The whole file of an array of plain numbers, any shape."""
    return npy_header(array.shape, array.dtype) + array.tobytes()


class NpyWriter(Closable):
    """Writes a file in blocks of rows, and hashes it while the disk writes. Use it as a context manager.

    Args:
        shape, dtype: of the array.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype | type) -> None:
        header = npy_header(shape, dtype)
        self._digests = BlockDigests(len(header) + math.prod(shape) * np.dtype(dtype).itemsize)
        self.path, self._file = path, open(path, "wb")  # noqa: SIM115 - see __exit__
        self._begun = 0
        self._add(header)

    def write(self, rows: np.ndarray) -> None:
        """Adds rows, [n, ...] of the file's type."""
        self._add(np.ascontiguousarray(rows))

    def finish(self) -> dict[str, Any]:
        """Flushes the file to the disk; returns its size and checksums, as `untrusted.BlockedFile` has them."""
        self._file.flush()
        os.fsync(self._file.fileno())
        digests = self._digests
        return {
            "bytes": self._file.tell(),
            "xxh3_blocks": digests.hexdigest(),
            "blocks": digests.all_blocks().hex(),
        }

    def _add(self, content: bytes | np.ndarray) -> None:
        self._digests.update(content)
        self._file.write(content)
        count = self._file.tell() - self._begun
        if count >= _TOGETHER:
            self._file.flush()
            begin_to_write(self._file.fileno(), self._begun, count)
            self._begun += count

    def close(self) -> None:
        self._file.close()


class GrowingNpyWriter:
    """Writes a file whose number of rows is known only at the end. Use it as a context manager.

    Args:
        columns, dtype: of the array, [rows, columns].

    Attributes:
        rows: how many have been appended.
    """

    def __init__(self, path: Path, columns: int, dtype: np.dtype) -> None:
        self._columns, self._dtype, self.rows = columns, dtype, 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.write(self._header())

    def append(self, rows: np.ndarray) -> None:
        """Appends rows [n, columns], cast to the file's type."""
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self.rows += len(rows)

    def _header(self) -> bytes:
        return npy_header((self.rows, self._columns), self._dtype)

    def __enter__(self) -> GrowingNpyWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                header = self._header()
                if len(header) != len(npy_header((0, self._columns), self._dtype)):
                    raise AssertionError("the header of a .npy file changed its length")
                self._file.seek(0)
                self._file.write(header)
        finally:
            self._file.close()


def mapped_npy(path: Path, shape: tuple[int, ...], dtype: type | np.dtype) -> np.memmap:
    """Makes a file of zeros, of this shape and type, and maps it for writing.

    Disk space is allocated here, so that a full disk raises OSError; without that, a later write to the mapping would
    kill the process.
    """
    dtype, header = np.dtype(dtype), npy_header(shape, dtype)
    with open(path, "wb") as file:
        file.write(header)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, len(header) + math.prod(shape) * dtype.itemsize)
    return np.load(path, mmap_mode="r+", allow_pickle=False)


def mapped_again(file: IO[bytes], shape: tuple[int, ...], dtype: type | np.dtype) -> np.memmap:
    """Maps a file that `mapped_npy` has made, and that is open, once more for writing.

    Raises:
        OSError: it is another file.
    """
    try:
        found = np.load(f"/proc/self/fd/{file.fileno()}", mmap_mode="r+", allow_pickle=False)
    except ValueError:
        found = None
    if found is None or (found.shape, found.dtype) != (shape, np.dtype(dtype)):
        raise OSError(errno.EINVAL, "is not the array that is shared", file.name)
    return found
