"""Rows in the memory of this machine.

Guarantees: those of `contract` and `kernels`. The table starts with the values of its `RowInitial`, for any number of
threads that fill it. It is filled by `initialize`, or the first call that needs these values, while others that need
them wait. Rows that `restore` sets, or that are loaded after `resize`, are not filled before.
"""

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from marius_oac.kernels.cpu import rows as kernels
from marius_oac.runtime.machine.numa_memory import MemoryPolicy, memory_policy
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore, RowLayout, Update
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.reserved import reserve
from marius_oac.storage.snapshots import SavedTable

# Bytes of the staging buffer of rows that `apply` locks at once: small enough for the L2 cache and for short waits of
# readers, large enough to be worth a call of the row optimizer.
_APPLY_BYTES = 1 << 18


class MemoryStore(ParameterStore):
    """A table in anonymous memory."""

    def __init__(
        self,
        name: str,
        num_rows: int,
        layout: RowLayout,
        initial: RowInitial,
        capacity: int | None = None,
        policy: MemoryPolicy | None = None,
    ) -> None:
        """Raises ValueError for invalid sizes, OSError (ENOMEM) if the memory can't be reserved."""
        super().__init__(name, num_rows, layout, initial, capacity)
        size = self.capacity * layout.row_bytes
        self._memory = np.frombuffer(self._make_memory(size), np.uint8, size)
        memory_policy(self._memory.ctypes.data, size, policy, f"table {name}")
        self._table = layout.table_at(self._memory.ctypes.data)
        self._reading = layout.reading(self._table)
        self._uninitialized, self._filling = True, threading.Lock()

    def _make_memory(self, num_bytes: int) -> mmap.mmap:
        return reserve(num_bytes)

    @property
    def nbytes(self) -> int:
        """See `ParameterStore.nbytes`."""
        return min(self.num_rows * self.layout.row_bytes, self._memory.nbytes)

    def initialize(self) -> None:
        """See `ParameterStore.initialize`."""
        self._check_open()
        if self._uninitialized:
            with self._filling:
                if self._uninitialized:
                    self._fill()
                    self._uninitialized = False

    def extend(self, keys: np.ndarray) -> None:
        """See `ParameterStore.extend`."""
        self.initialize()
        super().extend(keys)

    def resize(self, num_rows: int) -> None:
        """See `ParameterStore.resize`."""
        super().resize(num_rows)
        self._uninitialized = False

    def load(self, first_row: int, timestamps: np.ndarray, rows: np.ndarray) -> None:
        """See `ParameterStore.load`."""
        self.initialize()
        super().load(first_row, timestamps, rows)

    def _take(self, saved: SavedTable) -> None:
        self._uninitialized = False
        super()._take(saved)

    def _check_rows(self, rows: np.ndarray) -> None:
        self.initialize()
        super()._check_rows(rows)

    def _fill(self) -> None:
        def fill_block(first: int) -> None:
            rows = np.arange(first, min(first + ROWS_PER_BLOCK, self.num_rows))
            self._reset(rows, rows)  # which checks no rows, and so does not wait for `_filling`

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "fill") as threads:
            for _ in threads.map(fill_block, range(0, self.num_rows, ROWS_PER_BLOCK)):
                pass

    def _read(self, rows: np.ndarray, into: np.ndarray, timestamps: np.ndarray) -> None:
        kernels.read(self._reading[into.shape[1]], rows, into, timestamps)

    def _commit(self, rows: np.ndarray, values: np.ndarray, timestamp: int) -> int:
        return kernels.commit(self._table, rows, values, timestamp)

    def _overwrite(self, rows: np.ndarray, values: np.ndarray, timestamp: int, seen: np.ndarray) -> int:
        return kernels.overwrite(self._table, rows, values, timestamp, seen)

    def _add(self, rows: np.ndarray, deltas: np.ndarray, timestamp: int) -> None:
        kernels.add(self._table, rows, deltas, timestamp, np.empty(self.layout.width, np.float32))

    def _apply(self, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int) -> None:
        apply_locked(self._table, rows, gradients, update, timestamp, self.layout.width)

    def _restore(self, rows: np.ndarray, values: np.ndarray, timestamps: np.ndarray) -> None:
        kernels.restore(self._table, rows, values, timestamps)

    def _flush(self) -> None:
        pass

    def _release(self) -> None:
        # The memory is unmapped with its last view; the table's address is invalid then.
        self._memory = self._memory[:0].copy()
        del self._table, self._reading


def apply_locked(
    table: kernels.Table, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int, width: int
) -> None:
    """`ParameterStore.apply` on rows in memory, some at a time. `rows`, int64 [n], count the table's strides."""
    rows_at_once = max(1, _APPLY_BYTES // (4 * width))
    for first in range(0, rows.size, rows_at_once):
        chunk = slice(first, first + rows_at_once)
        _apply_chunk(table, rows[chunk], gradients[chunk], update, timestamp, width)


def _apply_chunk(
    table: kernels.Table, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int, width: int
) -> None:
    values = np.empty((rows.size, width), np.float32)
    held = np.full(rows.size, kernels.NOT_HELD, np.int64)
    # `held` always knows which locks are ours, since an interrupt may come between any two calls.
    try:
        kernels.lock_rows(table, rows, values, held)
        update(values, gradients)
        kernels.unlock_changed(table, rows, values, held, timestamp)
    except BaseException:
        kernels.unlock_unchanged(table, rows, held)
        raise
