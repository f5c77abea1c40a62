"""The rows of one module: a store, its keys, and what of them is with the user's loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from urllib.parse import quote

import numpy as np

from marius_oac.config.sections import OptimizerConfig, StorageConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.runs.stores import Tables
from marius_oac.runtime.machine import cgroups
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.storage.keys.index import MAX_CAPACITY
from marius_oac.storage.keys.table import KeyTable
from marius_oac.storage.snapshots import SavedTable
from marius_oac.training.own_loop.key_forms import KeyArray

_SHARE = 0.5  # of the free memory that a table may grow to
_KEY_BYTES = 25  # of the index, for each row


class Table:
    """Rows by key, in memory, of a table that is made empty.

    Attributes:
        initial: its new rows.
        kind: of the optimizer whose state the rows have.
        next_timestamp: that of the first batch to come: all before it are in the store.
        broken: why no engine may use the rows any more; None: any may.
    """

    def __init__(self, name: str, dimension: int, std: float, seed: int, config: OptimizerConfig, capacity: int | None):
        self.name, self.dimension, self.kind = name, dimension, config.kind
        optimizer = RowOptimizer(config)
        layout = RowLayout(dimension, optimizer.state_width(dimension))
        room = int(_SHARE * cgroups.free_memory() / (layout.row_bytes + _KEY_BYTES))
        initial = self.initial = RowInitial("normal", std, seed, name, optimizer.initial_state)
        name = quote(name, safe="").replace(".", "%2E")  # a part of files' names, up to the first dot
        capacities = {name: min(capacity or room, MAX_CAPACITY)}
        # The stack is never closed: the memory goes with its last view.
        self.store = Tables(StorageConfig(), None, {name: layout}, capacities, ExitStack()).make(name, 0, initial)
        self._keys = KeyTable(self.store)
        self._admitting = threading.Lock()  # a look-up must not find a key whose row is not in the store yet
        self.next_timestamp, self.broken = 0, None  # type: int, str | None

    @property
    def capacity(self) -> int:
        """The largest number of rows."""
        return self.store.capacity

    def __len__(self) -> int:
        return len(self._keys)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within it no key gets a row. No batch may be on its way to the store."""
        with self._admitting:
            yield

    def keys(self) -> dict[str, np.ndarray]:
        """The keys, as `KeyTable.arrays`, to be saved with the store."""
        return self._keys.arrays()

    def restore(self, saved: SavedTable, keys: Mapping[str, np.ndarray]) -> None:
        """Sets rows and keys to what was saved. Raises CheckpointError if it belongs to another table."""
        self._keys.load(keys)
        self.store.restore(saved)

    def begin_with(self, values: np.ndarray) -> None:
        """Gives keys 0 to n - 1 the first rows of the empty table, with these values, float32 [n, dimension].

        Raises:
            InputError: the table has no room for them.
        """
        count = len(values)
        keys = np.zeros(count, np.uint16), np.arange(count), np.zeros(count, np.uint32)
        self._keys.admit(*keys, np.full(count, -1), distinct=True)
        for block in self.store.blocks():
            block.rows[:, : self.dimension] = values[block.first_row : block.first_row + len(block.rows)]
            self.store.load(block.first_row, block.timestamps, block.rows)

    def find(self, distinct: DistinctKeys) -> np.ndarray:
        """The row of each key, int64 [m]; -1: it has none yet."""
        return self._keys.find(*distinct.asked)

    def admit(self, distinct: DistinctKeys, rows: np.ndarray) -> None:
        """Gives rows to the keys that have none, in place; by one thread at a time. Raises InputError if the table is
        full."""
        with self._admitting:
            self._keys.admit(*distinct.asked, rows, distinct=True)

    def look_up(self, keys: KeyArray) -> tuple[np.ndarray, np.ndarray]:
        """Values to read, float32 [m, dimension], and the place of each of n keys, int64 [n], among them."""
        with self._admitting:
            rows, local, _ = self._keys.look_up(*keys)
        return np.ascontiguousarray(rows[:, : self.dimension]), local.astype(np.int64)
