"""Arrays from .npy files that others may have made: mapped only if type, shape and size are as expected.

Nothing is unpickled. If a file is truncated after it was mapped, a process that reads beyond its end is killed by the
system (SIGBUS): there is no defence here against others who write to the folder meanwhile.
"""

from __future__ import annotations

import ast
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.files.untrusted import Error, open_regular

_MOST_LENGTH = 1 << 48
_BAD_HEADERS = (ValueError, SyntaxError, TypeError, KeyError, IndexError, OverflowError, MemoryError, RecursionError)
_HEADER_BYTES = 4096  # of what NumPy writes for plain arrays it is some 120


_PARSING = threading.Lock()
"""CPython 3.11 counts how deep it is in a text for all threads together, and may fail where two parse at once
(gh-106905)."""


def map_npy(
    path: Path, dtypes: Sequence[type | np.dtype], shape: Sequence[int | None], error: Error = InputError
) -> np.memmap:
    """An array mapped read-only, in C order and of this machine's byte order.

    Args:
        dtypes: the allowed types.
        shape: the expected shape; None for a dimension of any length.

    Raises:
        InputError, or what `error` makes: the file is missing or can't be read, or has another type, shape or size.
    """
    try:
        with open_regular(path, error) as file:
            found, dtype, offset = checked_header(file, os.fstat(file.fileno()).st_size, dtypes, shape)
            return np.memmap(file, dtype, "r", offset, found)
    except OSError as problem:
        raise error(f"can't be read: {problem.strerror or problem}", path) from None
    except ValueError as problem:
        raise error(str(problem), path) from None


def read_npy(
    path: Path, dtypes: Sequence[type | np.dtype], shape: Sequence[int | None], error: Error = InputError
) -> np.ndarray:
    """As `map_npy`, but read into memory."""
    return np.array(map_npy(path, dtypes, shape, error))


def npy_header(path: Path, error: Error = InputError) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type according to a file's header. Raises as `map_npy` where it is no .npy file."""
    try:
        with open_regular(path, error) as file:
            return _header(file)[:2]
    except OSError as problem:
        raise error(f"can't be read: {problem.strerror or problem}", path) from None
    except ValueError as problem:
        raise error(str(problem), path) from None


def checked_header(
    file: BinaryIO, size: int, dtypes: Sequence[type | np.dtype], shape: Sequence[int | None]
) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, type and where the numbers begin, of a file of this size whose beginning is read from `file`. Raises
    ValueError where `map_npy` raises an error."""
    found, dtype, fortran, offset = _header(file)
    _check(found, dtype, dtypes, shape)
    if (fortran and len(found) > 1) or offset % dtype.alignment:
        raise ValueError("is in Fortran order, or its numbers are not aligned")
    needed = offset + math.prod(found) * dtype.itemsize
    if size != needed:
        raise ValueError(f"is damaged: {size:,} bytes, {needed:,} are expected")
    return found, dtype, offset


def _header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype, bool, int]:
    """Shape, type, whether in Fortran order, and where the numbers begin. Raises ValueError."""
    begin = file.read(8)
    if begin[:6] != b"\x93NUMPY" or begin[6:] not in (b"\1\0", b"\2\0"):
        raise ValueError("is no .npy file of version 1.0 or 2.0")
    length = int.from_bytes(file.read(2 if begin[6] == 1 else 4), "little")
    try:
        if length > _HEADER_BYTES:
            raise ValueError
        text = file.read(length).decode("latin-1")
        with _PARSING:
            found = ast.literal_eval(text)
        shape, fortran, dtype = found["shape"], bool(found["fortran_order"]), np.dtype(str(found["descr"]))
    except _BAD_HEADERS:
        raise ValueError("is a damaged .npy file: its header") from None
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never opened")
    if type(shape) is not tuple or any(type(each) is not int or not 0 <= each < _MOST_LENGTH for each in shape):
        raise ValueError("is a damaged .npy file: its shape")
    return shape, dtype, fortran, file.tell()


def _check(
    found: tuple[int, ...], dtype: np.dtype, dtypes: Sequence[type | np.dtype], shape: Sequence[int | None]
) -> None:
    fits = len(found) == len(shape) and all(w is None or w == f for f, w in zip(found, shape, strict=False))
    if dtype not in [np.dtype(each) for each in dtypes] or not dtype.isnative or not fits:
        kinds = " or ".join(np.dtype(each).name for each in dtypes)
        lengths = ", ".join("any" if each is None else str(each) for each in shape)
        raise ValueError(f"holds {dtype} {list(found)}; {kinds} [{lengths}] is expected")
