"""Divides tables into pages, and knows the memory overhead of pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.storage.backing import TooSmallError
from marius_oac.storage.contract import RowLayout

BLOCK_BYTES = 4096  # the alignment of direct I/O
PAGE_TABLE_BYTES = 32  # overhead of each page of a table: directory, slot, checksum, and the references of two slots
_SHARE = 8
FRAME_BYTES = 77  # overhead of each frame: directory, twelve entries of announced batches


@dataclass(frozen=True)
class PagedTable:
    """A table in a tier: its pages are [first_page, first_page + num_pages)."""

    name: str
    layout: RowLayout
    rows_per_page: int
    first_page: int
    num_pages: int

    def pages_of(self, rows: np.ndarray) -> np.ndarray:
        """The pages of rows, int64 [n], ascending: int64 [m], ascending and unique."""
        pages = np.empty(rows.size, np.int64)
        return pages[: page_kernels.pages_of(rows, self.rows_per_page, self.first_page, pages)]

    def first_pages(self, num_rows: int) -> slice:
        """The pages of the first `num_rows` rows."""
        return slice(self.first_page, self.first_page + -(-num_rows // self.rows_per_page))

    def shape(self) -> list[int]:
        """The description of the table for `kernels.cpu.pages.copy_pages`."""
        layout = self.layout
        narrow = layout.value_dtype == "bfloat16"
        return [
            self.first_page, self.rows_per_page, layout.row_bytes, layout.dimension, int(narrow),
            layout.state_offset if narrow else 8 + 4 * layout.dimension, layout.state_width,
        ]  # fmt: skip


def page_bytes_for(row_bytes: Sequence[int]) -> int:
    """A good page size for rows of these sizes: the smallest multiple of 4 KiB of which the widest rows fill 7/8."""
    size, widest = BLOCK_BYTES, max(row_bytes)
    while size < widest or (size % widest) * 8 > size:
        size += BLOCK_BYTES
    return size


def too_small(what: str, pages: int, frames: int, page_bytes: int, spare: int = 0) -> TooSmallError:
    """The error of a batch that needs more pages than there are frames, of which it leaves `spare`."""
    need = -(-(frames_beside(pages) if spare else pages) * (page_bytes + FRAME_BYTES) >> 20)
    return TooSmallError(
        f"{what} uses {pages:,} pages of {page_bytes:,} bytes and the memory holds {frames - spare:,}: {need:,} MiB "
        "are needed at least"
    )


def on_demand(frames: int) -> int:
    """Of so many frames, those that a call may hold at once whose rows were not announced: other calls find some,
    too."""
    return max(1, frames // _SHARE)


def frames_beside(pages: int) -> int:
    """The fewest frames of which a batch can hold so many pages and leave `on_demand`."""
    return pages + max(1, (pages - 1) // (_SHARE - 1))


def frames_in(budget: int, page_bytes: int) -> int:
    """The number of frames that a budget in bytes allows."""
    return max(1, budget // (page_bytes + FRAME_BYTES))
