"""Checked columns of dgl's data: the ids in its CSV files, and masks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.data.prepare.splits import SPLITS
from marius_oac.data.prepare.text import line_of_row
from marius_oac.errors import InputError

MASKS = dict(zip(SPLITS, ("train_mask", "val_mask", "test_mask"), strict=True))
_MARKS = "a mask is true or false, or 1 or 0"


def table_ids(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    """A column of a CSV file that holds names or integers from 0.

    Raises:
        InputError: there is no such column, a value is missing or is something else.
    """
    if name not in table.column_names:
        raise InputError(f"has no column {name!r}: {', '.join(table.column_names)}", path)
    column = table.column(name)
    if not len(column):
        return column.cast(pa.string())
    _check_filled(column, name, path)
    if pa.types.is_integer(column.type):
        negative = pc.less(column, 0)
        if pc.any(negative).as_py():
            row = pc.index(negative, True).as_py()
            refuse_row(path, row, f"{column[row].as_py()} in column {name!r} is negative")
    elif not pa.types.is_string(column.type):
        raise InputError(f"column {name!r} holds {column.type}: names or whole numbers are needed", path)
    return column


def table_masks(table: pa.Table, path: Path) -> dict[str, np.ndarray]:
    """The masks of a CSV file by split, bool [n] each.

    Raises:
        InputError: a value is missing, or is none of true, false, 1 and 0.
    """
    return {split: _table_mask(table.column(mask), mask, path) for split, mask in _present(table.column_names)}


def _table_mask(column: pa.ChunkedArray, name: str, path: Path) -> np.ndarray:
    if len(column):
        _check_filled(column, name, path)
    wrong = np.zeros(len(column), np.bool_)
    if pa.types.is_integer(column.type):
        wrong = ~np.isin(column.to_numpy(), (0, 1))
    elif not pa.types.is_boolean(column.type):
        words = pc.utf8_lower(column.cast(pa.string()))
        wrong = ~pc.is_in(words, value_set=pa.array(["0", "1", "true", "false"])).to_numpy()
        wrong[:1] |= not wrong.any()  # each value is valid, but the column mixes words and numbers
    if wrong.any():
        row = int(np.argmax(wrong))
        refuse_row(path, row, f"column {name!r} holds {column[row].as_py()!r}; {_MARKS}")
    return column.to_numpy().astype(np.bool_)


def data_masks(data: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """The masks among dgl's tensors of one type of nodes or edges, by split, bool [n] each.

    Raises:
        InputError: a mask is no vector of booleans, or of integers 0 and 1.
    """
    return {split: _data_mask(data[mask], mask, where) for split, mask in _present(data)}


def _data_mask(mask: Any, name: str, where: str) -> np.ndarray:
    if mask.dim() != 1 or mask.is_floating_point() or mask.is_complex():
        kind = str(mask.dtype).removeprefix("torch.")
        raise InputError(f"{name!r} holds {kind} {list(mask.shape)}; {_MARKS}", where)
    found = mask.numpy()
    wrong = (found != 0) & (found != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{name!r} holds {found[row]} (of number {row}); {_MARKS}", where)
    return found.astype(np.bool_)


def _present(names: Any) -> list[tuple[str, str]]:
    return [(split, mask) for split, mask in MASKS.items() if mask in names]


def _check_filled(column: pa.ChunkedArray, name: str, path: Path) -> None:
    empty = pc.is_null(column)
    if pa.types.is_string(column.type):
        empty = pc.or_(empty, pc.fill_null(pc.equal(column, ""), True))
    if pc.any(empty).as_py():
        refuse_row(path, pc.index(empty, True).as_py(), f"has no value in column {name!r}")


def refuse_row(path: Path, row: int, reason: str) -> NoReturn:
    """Raises InputError with the line of a row of a CSV file, counted from 0."""
    raise InputError(reason, f"{path}:{line_of_row(path, row)}")
