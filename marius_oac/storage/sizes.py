"""How much memory and disk tables take of whose rows memory holds a part (`storage.memory`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.config.sections import StorageConfig
from marius_oac.errors import ConfigError
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.files import MOST_PAGES_A_JOB, num_threads
from marius_oac.storage.disk.layout import (
    BLOCK_BYTES,
    FRAME_BYTES,
    PAGE_TABLE_BYTES,
    frames_in,
    page_bytes_for,
    too_small,
)
from marius_oac.types import present

MEMORY_OF_ROWS = PAGE_TABLE_BYTES / BLOCK_BYTES
"""The most memory that is taken for a byte of a row, besides the budget."""


@dataclass(frozen=True)
class PagedSizes:
    """Bytes of memory for rows, for the tables of their pages and for pages on their way; and of disk."""

    rows: int
    page_tables: int
    moving: int
    disk: int


def paged_sizes(config: StorageConfig, layouts: Mapping[str, RowLayout], rows: Mapping[str, int]) -> PagedSizes:
    """What tables of so many rows take. Raises ConfigError as `page_bytes`."""
    size = page_bytes(config, list(layouts.values()))
    pages = sum(-(-count // (size // layouts[name].row_bytes)) for name, count in rows.items())
    frames = frames_in(present(config.memory), size)
    if pages:
        frames = min(frames, pages)
    moving = num_threads(config.io, config.depth) * MOST_PAGES_A_JOB
    return PagedSizes(frames * (size + FRAME_BYTES), pages * PAGE_TABLE_BYTES, moving * size, pages * size)


def check_batch(config: StorageConfig, layout: RowLayout, rows: np.ndarray) -> None:
    """Raises ConfigError if the memory for rows can't hold a batch of these, int64 [n], with what it takes."""
    if not config.paged:
        return
    size = page_bytes(config, [layout])
    pages = np.unique(rows // (size // layout.row_bytes)).size
    frames = frames_in(present(config.memory), size)
    if pages > frames:
        raise too_small("a batch", pages, frames, size)


def page_bytes(config: StorageConfig, layouts: Sequence[RowLayout]) -> int:
    """Bytes of a page. Raises ConfigError if `storage.page` is too small for a row."""
    widest = max(layout.row_bytes for layout in layouts)
    if config.page is not None and config.page < widest:
        raise ConfigError(f"a row has {widest:,} bytes, a page only {config.page:,}", "storage.page")
    return config.page or page_bytes_for([layout.row_bytes for layout in layouts])
