"""Moves pages between frames and files, in the I/O threads.

Guarantees: any number of threads may move different pages at once. The tier decides which thread moves which page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.storage.disk.files import MOST_PAGES_A_JOB, PageFiles
from marius_oac.storage.disk.layout import PagedTable
from marius_oac.storage.disk.saved_pages import damaged
from marius_oac.storage.reserved import reserve

Fill = Callable[[np.ndarray, np.ndarray], None]
NO_PAGES = np.zeros(0, np.int64)


@dataclass
class Traffic:
    """Counts of the traffic between memory and disk. A page that was never written is computed, not read."""

    pages_asked: int = 0
    pages_read: int = 0
    pages_computed: int = 0
    pages_written: int = 0
    requests: int = 0


@dataclass
class Move:
    """Pages that one job loads into frames, and changed pages that it evicts from these frames before. All int64.

    Attributes:
        ticket: of the claim that needs the pages.
        pages, frames, slots: of the pages to load; slot -1: the page was never written.
        out_pages, out_frames, out_slots: of the pages to evict, at most `MOST_PAGES_A_JOB`.
        out_checksums: uint64, of the evicted pages, once they have been copied.
        requests: the number of system calls so far.
    """

    ticket: int
    pages: np.ndarray = field(default_factory=lambda: NO_PAGES)
    frames: np.ndarray = field(default_factory=lambda: NO_PAGES)
    slots: np.ndarray = field(default_factory=lambda: NO_PAGES)
    out_pages: np.ndarray = field(default_factory=lambda: NO_PAGES)
    out_frames: np.ndarray = field(default_factory=lambda: NO_PAGES)
    out_slots: np.ndarray = field(default_factory=lambda: NO_PAGES)
    out_checksums: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    requests: int = 0


class PageMover:
    """Copies, reads, writes and computes pages.

    Args:
        files: the page files.
        memory: uint8 [frames, page bytes].
        tables: in page order.
        checksum_of: uint64 [pages], the checksum of each page on disk.

    Attributes:
        fills: of each table, `fill(pages, frames)` writes the initial rows of pages that were never written.
        not_finite: the first rows seen that held NaN or infinite numbers when their page was written; None: none.
    """

    def __init__(self, files: PageFiles, memory: np.ndarray, tables: Iterable[PagedTable], checksum_of: np.ndarray):
        self._files, self._memory, self._checksum_of = files, memory, checksum_of
        self._tables = tuple(tables)
        self._shapes = np.array([table.shape() for table in self._tables], np.int64)
        self._page_bytes, self._address = files.page_bytes, memory.ctypes.data
        self._own = threading.local()
        self.fills: dict[str, Fill] = {}
        self.not_finite: str | None = None

    def copy_out(self, move: Move) -> None:
        """Copies the pages to evict to this thread's buffer. Afterwards their frames can be reused."""
        if not move.out_pages.size:
            return
        move.out_checksums = np.empty(move.out_pages.size, np.uint64)
        sources = self._address + move.out_frames * self._page_bytes
        with np.errstate(over="ignore"):
            wrong = page_kernels.copy_pages(
                sources, self._aside(), self._page_bytes, move.out_pages, self._shapes, move.out_checksums
            )
        if wrong >= 0 and self.not_finite is None:
            table = self._table_of(wrong)
            first = (wrong - table.first_page) * table.rows_per_page
            self.not_finite = f"rows {first:,} to {first + table.rows_per_page - 1:,} of table {table.name!r}"

    def bring_in(self, move: Move) -> None:
        """Reads the pages to load, and computes those that were never written.

        Raises:
            InputError: a page is damaged.
            OSError: the disk failed.
        """
        new = int(np.searchsorted(move.slots, 0))  # -1 sorts first
        self._compute(move.pages[:new], move.frames[:new])
        pages, slots = move.pages[new:], move.slots[new:]
        if not pages.size:
            return
        addresses = self._address + move.frames[new:] * self._page_bytes
        move.requests += self._files.read(slots, addresses)
        with np.errstate(over="ignore"):
            wrong = page_kernels.first_damaged(
                addresses, self._page_bytes, self._within_tables(pages), self._checksum_of[pages]
            )
        if wrong < 0:
            wrong = page_kernels.first_locked(addresses, pages, self._shapes)
        if wrong >= 0:
            table = self._table_of(pages[wrong])
            page = int(pages[wrong]) - table.first_page
            raise damaged(self._files, int(slots[wrong]), table.name, page, table.rows_per_page)

    def write(self, move: Move) -> None:
        """Writes the pages that `copy_out` copied, in the same thread. Raises OSError if the disk failed."""
        if move.out_pages.size:
            addresses = self._aside() + np.arange(move.out_pages.size) * self._page_bytes
            move.requests += self._files.write(move.out_slots, addresses)

    def _aside(self) -> int:
        """The address of this thread's buffer for the pages of a job."""
        if not hasattr(self._own, "memory"):
            self._own.memory = np.frombuffer(reserve(MOST_PAGES_A_JOB * self._page_bytes), np.uint8)
        return self._own.memory.ctypes.data

    def _within_tables(self, pages: np.ndarray) -> np.ndarray:
        """The pages' numbers in their tables, since a table's first page may differ in the next run; int64 [n]."""
        first_pages = self._shapes[:, 0]
        return pages - first_pages[np.searchsorted(first_pages, pages, side="right") - 1]

    def _table_of(self, page: int) -> PagedTable:
        return next(table for table in self._tables if page < table.first_page + table.num_pages)

    def _compute(self, pages: np.ndarray, frames: np.ndarray) -> None:
        order = np.argsort(pages)
        pages, frames = pages[order], frames[order]
        self._memory[frames] = 0
        for table in self._tables:
            first, last = np.searchsorted(pages, (table.first_page, table.first_page + table.num_pages))
            if first < last:
                self.fills[table.name](pages[first:last], frames[first:last])
