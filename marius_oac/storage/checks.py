"""Checks of what callers hand to a table; each raises ValueError with the table's name."""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu import rows as kernels


def check_rows(table: str, rows: np.ndarray, num_rows: int) -> None:
    """Checks that `rows` are int64 [n], ascending, without repetition, and in `[0, num_rows)`."""
    check_array(table, "rows", rows, np.int64, (rows.size,))
    index = kernels.first_misplaced(rows, num_rows)
    if index < 0:
        return
    row = rows[index]
    if 0 <= row < num_rows:
        raise ValueError(
            f"table {table!r}: row ids must ascend without repetition, but rows[{index}] = {row} follows "
            f"{rows[index - 1]}"
        )
    raise ValueError(f"table {table!r}: rows[{index}] = {row} is not in 0 to {num_rows - 1}")


def check_timestamp(table: str, timestamp: int) -> None:
    """Checks that a batch may have this timestamp."""
    if not 0 <= timestamp <= kernels.MAX_TIMESTAMP:
        raise ValueError(f"table {table!r}: timestamp {timestamp} is not in 0 to {kernels.MAX_TIMESTAMP}")


def check_array(
    table: str, name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...], written: bool = False
) -> None:
    """Checks type, shape and layout of an array; `written`: that it is writable, too."""
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"table {table!r}: {name} must be {np.dtype(dtype)} {list(shape)}, not {array.dtype} {list(array.shape)}"
        )
    if not array.flags.c_contiguous or not array.flags.aligned or (written and not array.flags.writeable):
        raise ValueError(f"table {table!r}: {name} must be C-contiguous and aligned" + (" and writable" * written))
