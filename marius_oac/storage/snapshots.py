"""How a table gets into a checkpoint and back: what a store hands out, and what it is restored from.

A store that copies its rows hands out `PARTS`. Another one may hand out other arrays, such as where its rows lie; which
module reads those is known to `storage.saved` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from marius_oac.errors import CheckpointError, InputError
from marius_oac.kernels.cpu.rows import MAX_TIMESTAMP
from marius_oac.types import NEVER

PARTS = ("values", "state", "timestamps")
"""Of rows: float32 [rows, dimension], float32 [rows, state width], int64 [rows]."""


class RowArray(Protocol):
    """One part of a table's rows, in memory or read when it is indexed: by a slice, or by ascending rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows] or [rows, width]."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: Any, /) -> np.ndarray: ...


@dataclass(frozen=True)
class Snapshot:
    """A table at one moment, to be written to files.

    Attributes:
        arrays: shape and type of each array, by its part of the table.
        blocks: yields the next elements of every array, by part. The store must not change until the last one.
        about: what the table is besides, as plain data; None: the arrays are `PARTS`, and nothing else is needed.
    """

    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any] | type]]
    blocks: Iterator[Mapping[str, np.ndarray]]
    about: Mapping[str, Any] | None = None


class SavedTable:
    """A table as a checkpoint holds it. This class is for copies of all rows.

    Args:
        name: of the table.
        path: of the checkpoint.
        array: returns an array of the checkpoint by its part of the table.
    """

    parts: Sequence[str] = PARTS
    """The arrays that the checkpoint must have."""

    def __init__(self, name: str, path: Path, array: Callable[[str], Any]):
        self.name, self.path, self.array = name, path, array

    @property
    def references(self) -> np.ndarray | None:
        """What `Backing.keep` must keep for the table to be readable, int64 [n]; None: nothing."""
        return None

    def rows(self, part: str) -> RowArray:
        """Returns one of `PARTS` of the rows."""
        array: RowArray = self.array(part)
        return array

    def read(self, which: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads consecutive or ascending rows: values and state, float32 [n, width], and timestamps, int64 [n]."""
        values, state, timestamps = (self.rows(part)[which] for part in PARTS)
        return np.concatenate((values, state), axis=1), np.array(timestamps)

    def check_timestamps(self, timestamps: np.ndarray) -> None:
        """Raises CheckpointError if timestamps that were read, int64 [n], are none."""
        if timestamps.size and not NEVER <= timestamps.min() <= timestamps.max() <= MAX_TIMESTAMP:
            raise CheckpointError(f"table {self.name!r} has a timestamp that is none", self.path)

    def damage(self, besides: SavedTable | None, read: Callable[[int], object]) -> Iterator[InputError]:
        """Checks what lies outside of the checkpoint, except what `besides` has, too. Yields an error for each damaged
        file. `read` is called with numbers of bytes that were read."""
        return iter(())
