"""Rows on disk, of which memory holds as many as a budget allows.

Guarantees: those of `contract` and `kernels`, and the same bytes as the memory store. Rows that were not announced
(`DiskTier.announce`) are fetched on demand, a part of the memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.kernels.cpu import rows as kernels
from marius_oac.storage.contract import ParameterStore, RowLayout, Update
from marius_oac.storage.disk.saved_pages import PagedRows, fill_pages
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import apply_locked

_SHARE = 8  # a call uses at most this fraction of the frames at a time, so that other calls find frames too


class SsdStore(ParameterStore):
    """A table of a `DiskTier`.

    Rows that were never written need no disk space: they are computed on demand.
    """

    def __init__(
        self,
        name: str,
        num_rows: int,
        layout: RowLayout,
        initial: RowInitial,
        tier: DiskTier,
        capacity: int | None = None,
    ) -> None:
        super().__init__(name, num_rows, layout, initial, capacity)
        self.tier, self._first_rows = tier, num_rows
        self._place = tier.tables[name]
        self._table = layout.table_at(tier.address, stride=1)
        tier.fill_with(name, self._fill)

    @property
    def nbytes(self) -> int:
        """See `ParameterStore.nbytes`."""
        rows = min(self.num_rows, self.tier.frames * self._place.rows_per_page)
        return 0 if self._closed else rows * self.layout.row_bytes

    def held(self) -> HeldRows:
        """See `ParameterStore.held`."""
        return HeldRows(self)

    @property
    def about(self) -> PagedRows:
        """What a checkpoint must record about the table besides its pages."""
        return PagedRows(self.num_rows, self._first_rows, self.layout, self.initial)

    def _fill(self, pages: np.ndarray, frames: np.ndarray) -> None:
        place, within = self._place, np.arange(self._place.rows_per_page)
        rows = (pages - place.first_page)[:, None] * place.rows_per_page + within
        offsets = frames[:, None] * self.tier.page_bytes + within * self.layout.row_bytes
        fill_pages(self.about, self._table, rows.reshape(-1), offsets.reshape(-1))

    def _offsets(self, rows: np.ndarray) -> np.ndarray:
        place, tier = self._place, self.tier
        offsets = np.empty(rows.size, np.int64)
        page_kernels.locate(
            rows, place.rows_per_page, place.first_page, tier.directory.arrays.frame_of, tier.page_bytes,
            self.layout.row_bytes, offsets,
        )  # fmt: skip
        return offsets

    def _mark(self, rows: np.ndarray) -> None:
        place, arrays = self._place, self.tier.directory.arrays
        page_kernels.mark(rows, place.rows_per_page, place.first_page, arrays.frame_of, arrays.dirty)

    def _parts(self, rows: np.ndarray) -> Iterator[slice]:
        """Yields parts of the rows whose pages need at most a fraction of the memory."""
        most = max(1, self.tier.frames // _SHARE)
        pages = rows // self._place.rows_per_page
        new = np.flatnonzero(np.diff(pages, prepend=-1))
        starts = [*new[::most].tolist(), rows.size]
        for first, last in zip(starts, starts[1:], strict=False):
            yield slice(first, last)

    def _held(self, rows: np.ndarray, oldest: bool = False) -> AbstractContextManager[None]:
        return self.tier.holding(self._place.pages_of(rows), oldest)

    def _read(self, rows: np.ndarray, into: np.ndarray, timestamps: np.ndarray) -> None:
        for part in self._parts(rows):
            with self._held(rows[part], oldest=True):
                kernels.read(self._table, self._offsets(rows[part]), into[part], timestamps[part])

    def _commit(self, rows: np.ndarray, values: np.ndarray, timestamp: int) -> int:
        refused = 0
        for part in self._parts(rows):
            with self._held(rows[part]):
                refused += kernels.commit(self._table, self._offsets(rows[part]), values[part], timestamp)
                self._mark(rows[part])
        return refused

    def _overwrite(self, rows: np.ndarray, values: np.ndarray, timestamp: int, seen: np.ndarray) -> int:
        lost = 0
        for part in self._parts(rows):
            with self._held(rows[part]):
                lost += kernels.overwrite(self._table, self._offsets(rows[part]), values[part], timestamp, seen[part])
                self._mark(rows[part])
        return lost

    def _add(self, rows: np.ndarray, deltas: np.ndarray, timestamp: int) -> None:
        sums = np.empty(self.layout.width, np.float32)
        for part in self._parts(rows):
            with self._held(rows[part]):
                kernels.add(self._table, self._offsets(rows[part]), deltas[part], timestamp, sums)
                self._mark(rows[part])

    def _apply(self, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int) -> None:
        for part in self._parts(rows):
            with self._held(rows[part]):
                try:
                    apply_locked(
                        self._table, self._offsets(rows[part]), gradients[part], update, timestamp, self.layout.width
                    )
                finally:  # an update that fails may have written other rows before
                    self._mark(rows[part])

    def _restore(self, rows: np.ndarray, values: np.ndarray, timestamps: np.ndarray) -> None:
        for part in self._parts(rows):
            with self._held(rows[part]):
                kernels.restore(self._table, self._offsets(rows[part]), values[part], timestamps[part])
                self._mark(rows[part])

    def _flush(self) -> None:
        self.tier.flush(sync=True)

    def _release(self) -> None:
        pass


class HeldRows(SsdStore):
    """The same table for a pipeline, which holds the pages of all rows that it uses by a claim."""

    def __init__(self, store: SsdStore):
        self.__dict__ = store.__dict__

    def _parts(self, rows: np.ndarray) -> Iterator[slice]:
        return iter((slice(0, rows.size),))

    def _held(self, rows: np.ndarray, oldest: bool = False) -> AbstractContextManager[None]:
        return nullcontext()
