"""A batch in the pipeline, and the buffers that it borrows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marius_oac.pipeline.packing import Packing
from marius_oac.types import NEVER, BatchData, Plan, present


@dataclass
class Buffers:
    """Buffers for one batch's rows of every table, on the host or on the device (NumPy arrays or tensors).

    `rows[k]` int64 [n or more], `timestamps[k]` int64 [n or more], `values[k]` float32 [n or more, width].
    `free_after` is a CUDA event that must have passed before the buffers are written again, or None.
    `block`, uint8 [bytes], holds all of them where they are copied together (`packing`); then they have n rows.
    """

    rows: Sequence[Any] = ()
    timestamps: Sequence[Any] = ()
    values: Sequence[Any] = ()
    free_after: Any = None
    block: Any = None


@dataclass
class Batch:
    """One batch from plan to write. A stage owns it from the `get` of its channel to the `put` of the next."""

    plan: Plan[Any]
    mft_at_read: int = NEVER
    """The MFT when it began to read: every batch up to here was in the store."""
    timestamp: int = NEVER
    claim: Any = None
    """What the row exchange knows the batch's announced rows by."""
    staging: Buffers | None = None
    resident: Buffers | None = None
    """The buffers on the device; None before they are borrowed."""
    packing: Packing | None = None
    """Where the batch's arrays are in the blocks of its buffers, on a device that copies."""
    data: BatchData = field(default_factory=BatchData)
    """The plan's data, with its arrays on the device that computes."""
    uploaded: Any = None
    computed: Any = None
    began: dict[str, Any] = field(default_factory=dict)
    """Events before the device's work on each stage; `uploaded` and `computed` are those after."""
    loss: Any = None
    sound: Sequence[Any] = ()
    """For each table, whether its rows are finite and within bounds; 0-d tensors on a device of torch's."""
    replaced: Any = 0
    refused: int = 0
    lost: int = 0
    cached: bool = True
    """Whether later batches may need its rows from the cache."""
    cached_rows: int = 0

    @property
    def batch_index(self) -> int:
        """The batch's number in plan order."""
        return self.plan.batch_index

    def rows_in(self, buffers: Buffers | None, table: int) -> tuple[Any, Any, Any]:
        """The table's row ids, timestamps and values in `buffers`, of the batch's n rows."""
        count, buffers = len(self.plan.rows[table]), present(buffers)
        rows = buffers.rows[table][:count] if buffers.rows else None
        return rows, buffers.timestamps[table][:count], buffers.values[table][:count]


class Pool:
    """Buffers, made when first needed and reused, at most `limit` of them.

    The window over the plan order bounds how many batches can hold one, so running out is an error, never a wait.
    """

    def __init__(self, name: str, limit: int, make: Callable[[], Buffers]):
        self._name, self._limit, self._make = name, limit, make
        self._lock = threading.Lock()
        self._free: list[Buffers] = []
        self.made = 0

    def take(self) -> Buffers:
        """Takes unused buffers. Raises RuntimeError if the limit is reached."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self.made == self._limit:
                raise RuntimeError(f"all {self._limit} {self._name} buffers are taken: the window does not hold")
            self.made += 1
        return self._make()

    def give_back(self, buffers: Buffers | None) -> None:
        """Makes the buffers available again."""
        with self._lock:
            self._free.append(present(buffers))
