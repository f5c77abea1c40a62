"""A checkpoint of another number of processes, of which this process takes the rows that are its own now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from marius_oac.errors import CheckpointError
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.checkpoints.parts import ShardedCheckpoint
from marius_oac.torch.sharing import ALONE, Share


class _Chosen:
    """Some rows of an array, which are read when they are indexed: rows is int64 [n], ascending."""

    def __init__(self, array: Any, rows: np.ndarray):
        self._array, self._rows = array, rows
        self.shape, self.dtype = (rows.size, *array.shape[1:]), array.dtype
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> np.ndarray:
        found: np.ndarray = self._array[self._rows[which]]
        return found


class Resharded(ShardedCheckpoint):
    """All parts of a checkpoint, read as if this process had written a part of its own: those rows whose keys belong to
    it. What is no row is that of one of the parts.

    Attributes:
        share: of this process.
    """

    share: Share

    @classmethod
    def for_share(cls, parts: Sequence[Checkpoint], share: Share) -> Resharded:
        """What one process of a share takes of parts, by rank."""
        whole = cls.of([parts[share.rank % len(parts)]], parts)
        object.__setattr__(whole, "share", share)
        return whole

    @cached_property
    def _rows(self) -> dict[str, np.ndarray]:
        """The rows of each table that are this process's, int64 [n], ascending."""
        keys = super().arrays()
        return {table: self._held(table, keys) for table in self.tables()}

    def _held(self, table: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
        try:
            vocabularies, keys = arrays[f"{table}.index.vocabularies"], arrays[f"{table}.index.keys"]
        except KeyError as error:
            raise CheckpointError(f"is damaged: it has no {error.args[0]}", self.path) from None
        if keys.size != vocabularies.size or arrays[f"{table}.index.free"].size:
            raise CheckpointError(f"is damaged: keys of {table!r} don't match each other", self.path)
        if self.share == ALONE:
            return np.arange(keys.size)
        return np.flatnonzero(self.share.holds(vocabularies.astype(np.uint16), keys.astype(np.int64)))

    def array(self, table: str, part: str) -> Any:
        """See `Checkpoint.array`: of this process's rows."""
        whole = super().array(table, part)
        if len(whole) < self._rows[table].max(initial=-1) + 1:
            raise CheckpointError(f"is damaged: {table!r} has {len(whole)} rows, fewer than keys", self.path)
        return _Chosen(whole, self._rows[table])

    def arrays(self) -> dict[str, np.ndarray]:
        """The keys of this process's rows."""
        found = super().arrays()
        for table, rows in self._rows.items():
            for name in (name for name in found if name.startswith(f"{table}.") and not name.endswith(".free")):
                found[name] = found[name][rows]
        return found
