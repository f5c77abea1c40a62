"""Reads tables on disk from a checkpoint, without a tier: for evaluation, export and comparison.

Guarantees: any number of threads may read at once. Every page is checked against its checksum. No file stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from marius_oac.errors import InputError
from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.kernels.cpu import rows as kernels
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.files import LISTING, Listing, PageFiles
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.reserved import reserve
from marius_oac.storage.snapshots import SavedTable
from marius_oac.types import NEVER

MOST_ROWS = 1 << 40
_ROWS_AT_ONCE = 1 << 14
_PAGES_AT_ONCE = 1 << 11
_DEPTH = 8


@dataclass(frozen=True)
class PagedRows:
    """What a checkpoint records about a table on disk besides its pages.

    Attributes:
        num_rows: of the table.
        first_rows: the number of rows at the beginning, whose keys are their ids.
        layout: of a row.
        initial: the initial values; `recordable`, unless there are no first rows.

    Raises:
        ValueError: the numbers of rows are invalid.
    """

    num_rows: int
    first_rows: int
    layout: RowLayout
    initial: RowInitial

    def __post_init__(self) -> None:
        if not 0 <= self.first_rows <= self.num_rows <= MOST_ROWS:
            raise ValueError(f"{self.num_rows} rows, of which {self.first_rows} came first, can't be")

    def dump(self) -> dict[str, Any]:
        """Plain data, for a manifest."""
        return asdict(replace(self, initial=self.initial.plain))

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Self:
        """Loads the result of `dump`. Raises TypeError or KeyError if something is missing."""
        parts = {"layout": RowLayout(**saved["layout"]), "initial": RowInitial(**saved["initial"])}
        return cls(**{**saved, **parts})


def fill_pages(about: PagedRows, table: kernels.Table, rows: np.ndarray, offsets: np.ndarray) -> None:
    """Writes initial values to rows, int64 [n], at `offsets`, int64 [n] in bytes, from the table's address.

    Rows after the first ones are skipped, since `extend` writes them.
    """
    known = rows < about.first_rows
    rows, offsets = rows[known], offsets[known]
    for first in range(0, rows.size, _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        values = np.empty((rows[part].size, about.layout.width), np.float32)
        about.initial.fill(rows[part], values, about.layout.dimension)
        kernels.restore(table, offsets[part], values, np.full(len(values), NEVER))


class PagedArray:
    """One part of a table's rows: `values`, `state` or `timestamps`. It is indexed by a slice or by ascending rows.

    Args:
        folder, listing: of the page files.
        name: of the table, for messages.
        about: the table.
        slots, checksums: int64 and uint64 [pages], as `DiskTier.saved` returns them.
        part: which part.
        kept_by: an object whose existence keeps the pages unchanged.

    Raises:
        InputError: the page size or the number of pages doesn't match the table.
    """

    def __init__(
        self,
        folder: Path,
        listing: Listing,
        name: str,
        about: PagedRows,
        slots: np.ndarray,
        checksums: np.ndarray,
        part: str,
        kept_by: object = None,
    ):
        self._folder, self._listing, self._name, self._about = folder, listing, name, about
        self._slots, self._checksums, self._part, self._kept_by = slots, checksums, part, kept_by
        layout = about.layout
        self.rows_per_page = listing.page_bytes // layout.row_bytes
        if not self.rows_per_page:
            raise InputError(
                f"a page has {listing.page_bytes:,} bytes, a row of table {name!r} {layout.row_bytes:,}", folder
            )
        pages = -(-about.num_rows // self.rows_per_page)
        if not len(slots) == len(checksums) == pages:
            what = f"{len(slots):,} slots and {len(checksums):,} checksums"
            raise InputError(f"table {name!r} has {pages:,} pages, but {what}", folder)
        self._shape = np.array([[0, self.rows_per_page, layout.row_bytes]], np.int64)
        self._known = False  # whether the slots were checked
        self.dtype = np.dtype(np.int64 if part == "timestamps" else np.float32)
        width = {"values": (layout.dimension,), "state": (layout.state_width,), "timestamps": ()}[part]
        self.shape = (about.num_rows, *width)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        """The selected rows, [n] or [n, width]. Raises InputError, with file and rows, if a page is damaged."""
        dimension = self._about.layout.dimension
        found, timestamps = self.whole(which)
        if self._part == "timestamps":
            return timestamps
        return found[:, :dimension] if self._part == "values" else found[:, dimension:]

    def whole(self, which: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and state, float32 [n, width], and timestamps, int64 [n], of the selected rows, each page read once.
        Raises as indexing does."""
        rows = np.arange(*which.indices(len(self))) if isinstance(which, slice) else np.asarray(which)
        found = np.empty((rows.size, self._about.layout.width), np.float32)
        timestamps = np.empty(rows.size, np.int64)
        with PageFiles(self._folder, self._listing, "buffered", _DEPTH, writable=False) as files:
            if not self._known:
                files.check_slots(self._slots)
                self._known = True
            for first in range(0, rows.size, _ROWS_AT_ONCE):
                part = slice(first, first + _ROWS_AT_ONCE)
                self._rows(files, rows[part], found[part], timestamps[part])
        return found, timestamps

    def pages_besides(self, other: PagedArray | None) -> Iterator[np.ndarray]:
        """Yields the pages that were written and are not the same in `other`, an array of the same table: int64 [n]."""
        for first in range(0, len(self._slots), _PAGES_AT_ONCE):
            part = slice(first, first + _PAGES_AT_ONCE)
            slots, checksums = np.array(self._slots[part]), np.array(self._checksums[part])
            own = slots >= 0
            if other is not None:
                theirs, sums = np.array(other._slots[part]), np.array(other._checksums[part])
                same = (slots[: theirs.size] == theirs[: slots.size]) & (checksums[: sums.size] == sums[: slots.size])
                own[: same.size] &= ~same
            yield first + np.flatnonzero(own)

    def damage(self, besides: PagedArray | None, read: Callable[[int], object]) -> Iterator[InputError]:
        """Checks the pages that are not the same in `besides`. Yields one error for each damaged file. `read` is called
        with the number of bytes read."""
        found: set[int] = set()
        with PageFiles(self._folder, self._listing, "buffered", _DEPTH, writable=False) as files:
            files.check_slots(self._slots)
            for pages in self.pages_besides(besides):
                memory = np.frombuffer(reserve(max(pages.size, 1) * files.page_bytes), np.uint8)
                numbers = files.numbers_of(self._slots[pages])
                for number in sorted(set(numbers.tolist()) - found):
                    own = pages[numbers == number]
                    try:
                        self._read(files, own, memory)
                    except InputError as error:
                        found.add(number)
                        yield error
                    read(own.size * files.page_bytes)

    def _rows(self, files: PageFiles, rows: np.ndarray, into: np.ndarray, timestamps: np.ndarray) -> None:
        layout = self._about.layout
        rows_per_page = self.rows_per_page
        pages, where = np.unique(rows // rows_per_page, return_inverse=True)
        memory = np.frombuffer(reserve(pages.size * files.page_bytes), np.uint8)
        table = layout.table_at(memory.ctypes.data, stride=1)
        self._read(files, pages, memory)
        offsets = where * files.page_bytes + rows % rows_per_page * layout.row_bytes
        new = self._slots[pages][where] < 0
        fill_pages(self._about, table, rows[new], offsets[new])
        kernels.read(table, offsets, into, timestamps)

    def _read(self, files: PageFiles, pages: np.ndarray, memory: np.ndarray) -> None:
        slots = np.array(self._slots[pages])
        order = np.argsort(slots, kind="stable")
        order = order[slots[order] >= 0]
        addresses = memory.ctypes.data + order * files.page_bytes
        try:
            parts = files.jobs(order.size)
            for job in [files.submit(files.read, slots[order[part]], addresses[part]) for part in parts]:
                job.result()
        except OSError as error:
            raise InputError(f"can't be read: {error.strerror}", error.filename) from None
        with np.errstate(over="ignore"):
            wrong = page_kernels.first_damaged(
                addresses, files.page_bytes, pages[order], np.array(self._checksums[pages[order]])
            )
        if wrong < 0:
            wrong = page_kernels.first_locked(addresses, pages[order], self._shape)
        if wrong >= 0:
            raise damaged(files, int(slots[order[wrong]]), self._name, int(pages[order[wrong]]), self.rows_per_page)


class SavedPages(SavedTable):
    """A table of which a checkpoint holds where its pages lie.

    Args:
        name, path, array: see `SavedTable`.
        about: the table.
        tables: the folder with the listing of the page files.
        kept_by: an object whose existence keeps the pages unchanged.
    """

    parts = ("slots", "checksums")

    def __init__(
        self, name: str, path: Path, array: Callable[[str], np.ndarray], about: PagedRows, tables: Path, kept_by: object
    ):
        super().__init__(name, path, array)
        self.about, self._tables, self._kept_by = about, tables, kept_by

    @property
    def references(self) -> np.ndarray:
        """The slots of the pages, int64 [n]."""
        slots: np.ndarray = self.array("slots")
        return slots

    def rows(self, part: str) -> PagedArray:
        """See `SavedTable.rows`. Raises InputError as `Listing.load` and `PagedArray`."""
        listing = Listing.load(self._tables / LISTING)
        slots, checksums = map(self.array, self.parts)
        return PagedArray(self._tables, listing, self.name, self.about, slots, checksums, part, self._kept_by)

    @cached_property
    def _values(self) -> PagedArray:
        return self.rows("values")

    def read(self, which: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `SavedTable.read`."""
        return self._values.whole(which)

    def damage(self, besides: SavedTable | None, read: Callable[[int], object]) -> Iterator[InputError]:
        """See `SavedTable.damage`."""
        return self._values.damage(besides._values if isinstance(besides, SavedPages) else None, read)


def damaged(files: PageFiles, slot: int, table: str, page: int, rows_per_page: int) -> InputError:
    """The error of a page, numbered within its table, whose slot holds something else."""
    first = page * rows_per_page
    return InputError(
        f"slot {slot} is damaged or stale: rows {first:,} to {first + rows_per_page - 1:,} of table {table!r} are not "
        "what was written there",
        files.path_of(slot),
    )
