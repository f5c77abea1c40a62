"""Rows on disk, of which memory holds as many as a budget allows.

Guarantees: those of `contract` and `kernels`, and the same bytes as the memory store. Rows that were not announced
(`DiskTier.announce`) are fetched on demand, a part of the memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from marius_oac.errors import CheckpointError
from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.kernels.cpu import rows as kernels
from marius_oac.runtime.signals import uninterrupted
from marius_oac.storage.contract import ParameterStore, RowAccess, RowLayout, Update
from marius_oac.storage.disk.saved_pages import PagedRows, SavedPages, fill_pages
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import apply_locked
from marius_oac.storage.snapshots import SavedTable, Snapshot


class SsdStore(ParameterStore):
    """A table of a `DiskTier`.

    Rows that were never written need no disk space: they are computed on demand.

    Args:
        name, num_rows, layout, initial, capacity: see `ParameterStore`.
        tier: that of the table.
        lasting: the page files outlive the process, so a snapshot may refer to them.
    """

    def __init__(
        self,
        name: str,
        num_rows: int,
        layout: RowLayout,
        initial: RowInitial,
        tier: DiskTier,
        capacity: int | None = None,
        lasting: bool = True,
    ) -> None:
        super().__init__(name, num_rows, layout, initial, capacity)
        self.backing = self._tier = tier
        self._lasting = lasting
        self._first_rows, self._place = num_rows, tier.tables[name]
        self._held = HeldRows(self, tier)
        tier.fill_with(name, self._fill)

    @property
    def nbytes(self) -> int:
        """See `ParameterStore.nbytes`."""
        rows = min(self.num_rows, self._tier.frames * self._place.rows_per_page)
        return 0 if self._closed else rows * self.layout.row_bytes

    def snapshot(self) -> Snapshot:
        """See `ParameterStore.snapshot`: writes the pages that have changed, and hands out where all of them lie.
        Without `lasting` files it copies rows."""
        if not self._lasting:
            return super().snapshot()
        self._tier.files.check_there()
        self.flush()
        if self._tier.not_finite:
            raise FloatingPointError(f"{self._tier.not_finite} hold NaN or infinite numbers")
        saved = self._tier.saved(self.name, self.num_rows)
        arrays = {part: (array.shape, array.dtype) for part, array in saved.items()}
        return Snapshot(arrays, iter([saved]), {"rows": self.about.dump()})

    def _take(self, saved: SavedTable) -> None:
        if not isinstance(saved, SavedPages):
            return super()._take(saved)
        if saved.about.layout != self.layout:
            raise CheckpointError(f"table {self.name!r} has another layout", saved.path)
        self._tier.restore(self.name, *map(saved.array, saved.parts))

    def held(self) -> HeldRows:
        """See `ParameterStore.held`."""
        return self._held

    @property
    def about(self) -> PagedRows:
        """What a checkpoint must record about the table besides its pages."""
        return PagedRows(self.num_rows, self._first_rows, self.layout, self.initial)

    def _fill(self, pages: np.ndarray, frames: np.ndarray) -> None:
        place, within = self._place, np.arange(self._place.rows_per_page)
        rows = (pages - place.first_page)[:, None] * place.rows_per_page + within
        offsets = frames[:, None] * self._tier.page_bytes + within * self.layout.row_bytes
        table = self.layout.table_at(self._tier.address, stride=1)
        fill_pages(self.about, table, rows.reshape(-1), offsets.reshape(-1))

    def _in_parts(self, rows: np.ndarray, work: Callable[[slice], int | None], oldest: bool = False) -> int:
        """Calls `work` for parts of the rows whose pages need at most a fraction of the memory, and are held meanwhile.
        Returns the sum of what it returns."""
        pages = rows // self._place.rows_per_page
        new = np.flatnonzero(np.diff(pages, prepend=-1))
        starts, total = [*new[:: self._tier.on_demand].tolist(), rows.size], 0
        for first, last in zip(starts, starts[1:], strict=False):
            part = slice(first, last)
            # Ctrl-C must not come between: what it leaves held would never be evicted.
            with uninterrupted(), self._tier.holding(self._place.pages_of(rows[part]), oldest):
                total += work(part) or 0
        return total

    def _read(self, rows: np.ndarray, into: np.ndarray, timestamps: np.ndarray) -> None:
        self._in_parts(rows, lambda part: self._held._read(rows[part], into[part], timestamps[part]), oldest=True)

    def _commit(self, rows: np.ndarray, values: np.ndarray, timestamp: int) -> int:
        return self._in_parts(rows, lambda part: self._held._commit(rows[part], values[part], timestamp))

    def _overwrite(self, rows: np.ndarray, values: np.ndarray, timestamp: int, seen: np.ndarray) -> int:
        return self._in_parts(rows, lambda part: self._held._overwrite(rows[part], values[part], timestamp, seen[part]))

    def _add(self, rows: np.ndarray, deltas: np.ndarray, timestamp: int) -> None:
        self._in_parts(rows, lambda part: self._held._add(rows[part], deltas[part], timestamp))

    def _apply(self, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int) -> None:
        self._in_parts(rows, lambda part: self._held._apply(rows[part], gradients[part], update, timestamp))

    def _restore(self, rows: np.ndarray, values: np.ndarray, timestamps: np.ndarray) -> None:
        self._in_parts(rows, lambda part: self._held._restore(rows[part], values[part], timestamps[part]))

    def _flush(self) -> None:
        self._tier.flush(sync=True)

    def _release(self) -> None:
        pass


class HeldRows(RowAccess):
    """The rows of a store whose pages are in memory, held by a claim."""

    def __init__(self, store: SsdStore, tier: DiskTier):
        self.name, self.layout, self._store, self._tier = store.name, store.layout, store, tier
        self._place = tier.tables[store.name]
        self._table = store.layout.table_at(tier.address, stride=1)
        self._reading = store.layout.reading(self._table)

    @property
    def num_rows(self) -> int:
        """See `RowAccess.num_rows`."""
        return self._store.num_rows

    def _offsets(self, rows: np.ndarray) -> np.ndarray:
        place, tier = self._place, self._tier
        offsets = np.empty(rows.size, np.int64)
        page_kernels.locate(
            rows, place.rows_per_page, place.first_page, tier.directory.arrays.frame_of, tier.page_bytes,
            self.layout.row_bytes, offsets,
        )  # fmt: skip
        return offsets

    def _mark(self, rows: np.ndarray) -> None:
        place, arrays = self._place, self._tier.directory.arrays
        page_kernels.mark(rows, place.rows_per_page, place.first_page, arrays.frame_of, arrays.dirty)

    def _read(self, rows: np.ndarray, into: np.ndarray, timestamps: np.ndarray) -> None:
        kernels.read(self._reading[into.shape[1]], self._offsets(rows), into, timestamps)

    def _commit(self, rows: np.ndarray, values: np.ndarray, timestamp: int) -> int:
        refused = kernels.commit(self._table, self._offsets(rows), values, timestamp)
        self._mark(rows)
        return refused

    def _overwrite(self, rows: np.ndarray, values: np.ndarray, timestamp: int, seen: np.ndarray) -> int:
        lost = kernels.overwrite(self._table, self._offsets(rows), values, timestamp, seen)
        self._mark(rows)
        return lost

    def _add(self, rows: np.ndarray, deltas: np.ndarray, timestamp: int) -> None:
        kernels.add(self._table, self._offsets(rows), deltas, timestamp, np.empty(self.layout.width, np.float32))
        self._mark(rows)

    def _apply(self, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int) -> None:
        try:
            apply_locked(self._table, self._offsets(rows), gradients, update, timestamp, self.layout.width)
        finally:  # an update that fails may have written other rows before
            self._mark(rows)

    def _restore(self, rows: np.ndarray, values: np.ndarray, timestamps: np.ndarray) -> None:
        kernels.restore(self._table, self._offsets(rows), values, timestamps)
        self._mark(rows)

    def _check_open(self) -> None:
        self._store._check_open()
