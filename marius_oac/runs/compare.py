"""Compares two checkpoints: whether their bits are equal, else how large the differences are, and where the first
is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.export import Names
from marius_oac.storage.contract import ROWS_PER_BLOCK
from marius_oac.storage.snapshots import RowArray


@dataclass(frozen=True)
class Difference:
    """One array of two checkpoints.

    Attributes:
        name: such as `entities.values`.
        rows: its rows; `differing` of them are not the same bits, `first` is the first of these (-1: none).
        largest, mean: absolute difference of its numbers; NaN where one of them is.
        first_name: what the first differing row is called, where that is known.
    """

    name: str
    rows: int
    differing: int
    first: int
    largest: float
    mean: float
    first_name: str | None = None

    def __str__(self) -> str:
        if not self.differing:
            return f"{self.name}: same bits"
        called = f" ({self.first_name})" if self.first_name else ""
        return (
            f"{self.name}: {self.differing:,} of {self.rows:,} rows differ, first row {self.first}{called}; "
            f"largest difference {self.largest:.3g}, mean {self.mean:.3g}"
        )


@dataclass(frozen=True)
class Comparison:
    """All arrays of two checkpoints; `same` if every bit is. Timestamps are not compared."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    installations: str = ""
    """What the first run was trained with, and not the second, where other bits come of it."""

    @property
    def same(self) -> bool:
        """Whether no row differs."""
        return not any(difference.differing for difference in self.differences)

    def __str__(self) -> str:
        verdict = "the same bits" if self.same else "different"
        lines = [f"{self.first} and {self.second}: {verdict}", *(f"  {one}" for one in self.differences)]
        if self.installations:
            lines.append(f"  other bits are to be expected where the first was trained: {self.installations}")
        return "\n".join(lines)


def compare(first: Checkpoint, second: Checkpoint, names: Mapping[str, Names] | None = None) -> Comparison:
    """Compares values, optimizer state and dense parameters, in bounded memory.

    `names[table](ids)` names rows of a table.

    Raises:
        InputError: the checkpoints have other tables, or tables of other shapes.
    """
    ours, theirs = dict(_arrays(first)), dict(_arrays(second))
    if ours.keys() != theirs.keys():
        raise InputError(f"{sorted(ours)} can't be compared with {sorted(theirs)}", second.path)
    for name, array in ours.items():
        if (array.shape, array.dtype) != (theirs[name].shape, theirs[name].dtype):
            shapes = " and ".join(f"{each.dtype} {list(each.shape)}" for each in (array, theirs[name]))
            raise InputError(f"{name} can't be compared: {shapes}", second.path)
    equal = _same_files(first, second)
    found = ((name, array, array if name in equal else theirs[name]) for name, array in ours.items())
    differences = tuple(_named(_difference(*each), names or {}) for each in found)
    return Comparison(str(first.path), str(second.path), differences)


def _same_files(first: Checkpoint, second: Checkpoint) -> set[str]:
    """Arrays whose files have the same checksum. Both were verified when they were opened, so their bits are equal."""
    theirs = second.checksums()
    return {name for name, digest in first.checksums().items() if theirs.get(name) == digest}


def _named(difference: Difference, names: Mapping[str, Names]) -> Difference:
    table = difference.name.partition(".")[0]
    if not difference.differing or table not in names:
        return difference
    return replace(difference, first_name=names[table](np.array([difference.first]))[0])


def _arrays(checkpoint: Checkpoint) -> Iterator[tuple[str, RowArray]]:
    for table in checkpoint.tables():
        for part in ("values", "state"):
            yield f"{table}.{part}", checkpoint.array(table, part)
    for name, tensor in sorted(checkpoint.dense().items()):
        # A user's own network may have types that NumPy lacks.
        narrow = tensor.is_floating_point() and tensor.element_size() < 4
        yield name, np.atleast_1d((tensor.float() if narrow else tensor).numpy())


def _difference(name: str, ours: RowArray, theirs: RowArray) -> Difference:
    differing, first, largest, total = 0, -1, 0.0, 0.0
    if ours is theirs:
        return Difference(name, len(ours), differing, first, largest, total)
    for start in range(0, len(ours), ROWS_PER_BLOCK):
        a, b = (np.ascontiguousarray(array[start : start + ROWS_PER_BLOCK]) for array in (ours, theirs))
        rows = np.flatnonzero((a.view(np.uint8) != b.view(np.uint8)).reshape(len(a), -1).any(1))
        if not rows.size:
            continue
        first = start + int(rows[0]) if first < 0 else first
        differing += rows.size
        with np.errstate(invalid="ignore"):  # infinite on both sides: the gap is NaN
            gap = np.abs(a[rows].astype(np.float64) - b[rows])
        largest = float(np.maximum(largest, gap.max()))
        total += float(gap.sum())
    return Difference(name, len(ours), differing, first, largest, total / max(ours.size, 1))
