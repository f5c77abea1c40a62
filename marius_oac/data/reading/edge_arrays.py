"""Reads edges from files of arrays: NumPy's .npy and .npz, and .pt of torch.save, which is read without torch.

An array [E, 2 or 3] has an edge in each row. One [2, E] is an `edge_index` as PyTorch Geometric has it, with relations
in an array `edge_type` [E]. Arrays of a .npz, and those with relations, are read into memory; others are mapped.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from marius_oac.data.reading.edge_file import EdgeFile, column_names
from marius_oac.data.reading.torch_file import read_torch_file
from marius_oac.errors import InputError
from marius_oac.runtime.files.scratch import scratch_folder
from marius_oac.runtime.files.untrusted import open_regular
from marius_oac.runtime.files.untrusted_arrays import npy_header

ARRAYS = (".npy", ".npz", ".pt")
"""Suffixes of such files."""
BATCH_ROWS = 1 << 19
_ROWS = 1 << 14  # first ones, which tell the columns
_NAMES = ("edge_index", "edges")
_READ = (*_NAMES, "edge_type")
_Read = Callable[[str, tuple[int | None, ...] | None], np.ndarray]
_INT64_MAX = np.iinfo(np.int64).max


def read_array(file: EdgeFile) -> Iterator[pa.RecordBatch]:
    """Yields the edges in file order. Raises InputError as `readers.read_edges`."""
    with ExitStack() as stack:
        mapped = file.path.suffix.lower() == ".npy"
        opened, name = (_open_npy(file.path), "") if mapped else _open_named(file, stack)
        turned = _is_turned(opened, name, file)
        ids = opened.T if turned else opened
        file.check_rows(len(ids))
        if ids.dtype.kind == "f":
            refuse_floats(ids[:BATCH_ROWS], 1, file.path)
        if ids.dtype.kind not in "iu":
            raise InputError(f"ids must be integers, not {ids.dtype}", file.path)
        rows, width = ids.shape
        first = [list(map(str, row)) for row in ids[:_ROWS].tolist()] if width == 3 and name != "edge_type" else ()
        chosen = file.select(width, None, first)
        file.settle("NumPy", width, None, chosen)
        del ids
        for start in range(0, rows, BATCH_ROWS):
            if mapped:  # again for each batch, else all pages that were read would stay resident
                opened = _open_npy(file.path)
            part = (opened.T if turned else opened)[start : start + BATCH_ROWS]
            part = checked_ids(np.array(part[:, chosen]), start + 1, file.path)
            columns = [pa.array(np.ascontiguousarray(part[:, index])) for index in range(part.shape[1])]
            yield pa.RecordBatch.from_arrays(columns, names=column_names(len(chosen)))


def _is_turned(ids: np.ndarray, name: str, file: EdgeFile) -> bool:
    """Whether an array has an edge in each column. `name`: see `_open_named`."""
    if not isinstance(ids, np.ndarray) or ids.ndim != 2:
        raise InputError(
            f"an array [edges, 2 or 3] or [2, edges] is needed, not one of shape {np.shape(ids)}", file.path
        )
    rows, columns = ids.shape
    if rows == 2 and name == "edge_index" and file.options.columns is not None:
        raise InputError("an edge_index has an edge in each column: leave --columns out", file.path)
    if rows != 2 or file.options.columns is not None or name == "edge_type":
        return False
    if columns in (2, 3) and name != "edge_index":
        file.tell(
            f"an array of 2 x {columns} is read as an edge in each row; it may be an edge_index (write it as .npz)"
        )
        return False
    return True


def _open_named(file: EdgeFile, stack: ExitStack) -> tuple[np.ndarray, str]:
    """The array `edge_index` or `edges` of a file, or its only one, and its name. With `edge_type` beside it, it is an
    array [edges, 3] of that name."""
    path = file.path
    if path.suffix.lower() == ".pt":
        opened = read_torch_file(path, stack.enter_context(scratch_folder()))
        names, read = opened.names, cast(_Read, opened.integers)
    else:
        names, read = _open_npz(path, stack)
    name = next((name for name in _NAMES if name in names), names[0] if len(names) == 1 else None)
    if name is None:
        raise InputError(f"has no array 'edge_index'; it has {', '.join(names[:10]) or 'none'}", path)
    ids = read(name, None)
    if left := [other for other in names if other.startswith(("edge_", "time", "weight")) and other not in _READ]:
        file.tell(f"left out: {', '.join(left[:10])} (arrays)")
    if name != "edge_index" or "edge_type" not in names:
        return ids, name
    kinds = read("edge_type", None)
    if ids.ndim != 2 or len(ids) != 2 or kinds.shape != ids.shape[1:]:
        raise InputError(f"edge_index has the shape {ids.shape}, and edge_type {kinds.shape}", path)
    return np.stack([ids[0], kinds, ids[1]], axis=1), "edge_type"


def _open_npz(path: Path, stack: ExitStack) -> tuple[list[str], _Read]:
    """The names of the arrays of a .npz, and what reads one of them."""

    def read(name: str, shape: tuple[int | None, ...] | None) -> np.ndarray:
        with _numpy_errors(path):
            return arrays[name]

    with _numpy_errors(path):
        opened = stack.enter_context(open_regular(path))
        arrays = stack.enter_context(np.load(opened, allow_pickle=False))
        return list(arrays.files), read


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        ValueError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        AttributeError,
        NotImplementedError,
    ) as error:
        raise InputError(f"not a NumPy file of integers, or a damaged one: {error}", path) from None
    except MemoryError:
        raise InputError(
            "an array is larger than the memory that is free: write a .npy, which is mapped", path
        ) from None


def _open_npy(path: Path) -> np.ndarray:
    try:
        npy_header(path)
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except InputError as error:
        raise InputError(f"not a NumPy file of integers, or a damaged one: it {error.message}", path) from None
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"not a NumPy file of integers, or a damaged one: {error}", path) from None


def checked_ids(ids: np.ndarray, first_row: int, path: Path) -> np.ndarray:
    """Ids [n] or [n, k] as int64, or InputError with the row of the first one outside [0, 2**63)."""
    wrong = (ids > _INT64_MAX) if ids.dtype == np.uint64 else (ids < 0)
    if wrong.any():
        position = tuple(np.argwhere(wrong)[0])
        which = "is beyond 2^63 - 1" if ids.dtype == np.uint64 else "is negative"
        raise InputError(f"row {first_row + int(position[0])}: id {ids[position]} {which}", path)
    return ids.astype(np.int64)


def refuse_floats(ids: np.ndarray, first_row: int, path: Path) -> None:
    """Raises InputError for ids that are floats, with the row of the first one that is no integer."""
    wrong = np.argwhere(~np.isfinite(ids) | (ids != np.floor(ids)))
    seen = f"; row {first_row + int(wrong[0][0])} holds {ids[tuple(wrong[0])]}" if len(wrong) else ""
    raise InputError(f"ids must be integers, not {ids.dtype} (which can't tell large ids apart){seen}", path)
