"""`order.npy`: the order in which a run's batches were computed, if that is not the plans'."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.errors import CheckpointError
from marius_oac.runtime.files.atomic import write_atomically
from marius_oac.runtime.files.npy import npy_bytes
from marius_oac.runtime.files.untrusted_arrays import read_npy

ORDER = "order.npy"


class OrderFile:
    """The file `order.npy` of a run; it exists once batches are recorded. An order is int64 [batches]."""

    def __init__(self, folder: Path):
        self.path = folder / ORDER

    def read(self) -> np.ndarray:
        """The recorded order, int64 [batches]. Raises CheckpointError if it can't be read."""
        if not self.path.exists():
            return np.empty(0, np.int64)
        return read_npy(self.path, (np.int64,), (None,), CheckpointError)

    def records(self, batch_index: int) -> dict[str, Any]:
        """What a checkpoint before batch `batch_index` records of the order, as plain values."""
        return {"order": _digest(self.read()[:batch_index])}

    def checked(self, batch_index: int, records: Mapping[str, Any]) -> np.ndarray:
        """The first `batch_index` batches. Raises CheckpointError if they are not what `records` say."""
        order = self.read()
        if len(order) < batch_index:
            raise CheckpointError(f"holds {len(order):,} batches, {batch_index:,} are expected", self.path)
        found = _digest(order[:batch_index])
        if found != records.get("order", found):
            raise CheckpointError("is damaged: it is not the order that was recorded", self.path)
        return order[:batch_index]

    def append(self, order: Sequence[int]) -> None:
        """Adds batch numbers at the end."""
        self.write(np.concatenate((self.read(), np.array(order, np.int64))))

    def write(self, order: np.ndarray) -> None:
        """Replaces the file by this order, int64 [batches]; all of it or nothing."""
        write_atomically(self.path, npy_bytes(order))


def _digest(order: np.ndarray) -> str:
    return hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()
