"""How much memory and disk tables take, in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marius_oac.config.sections import StorageConfig
from marius_oac.config.task import TaskConfig
from marius_oac.errors import ConfigError
from marius_oac.runs.memory.plan import Need
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.files import MOST_PAGES_A_JOB, num_threads
from marius_oac.storage.disk.layout import FRAME_BYTES, PAGE_TABLE_BYTES, frames_in, page_bytes_for, too_small
from marius_oac.types import present


def table_needs(
    config: StorageConfig, layouts: Mapping[str, RowLayout], rows: Mapping[str, int], key: str
) -> list[Need]:
    """What tables of so many rows take in memory, and on disk while they are trained; `key` makes them smaller."""
    whole = sum(count * layouts[name].row_bytes for name, count in rows.items())
    if not config.paged:
        mapped = config.io == "mmap"
        disk = [Need("disk", "tables", whole, key)] if mapped else []
        return [Need("host", "tables", whole, key, mapped=mapped), *disk]
    size = page_bytes(config, list(layouts.values()))
    pages = sum(-(-count // (size // layouts[name].row_bytes)) for name, count in rows.items())
    frames = frames_in(present(config.memory), size)
    if pages:
        frames = min(frames, pages)
    moving = num_threads(config.io, config.depth) * MOST_PAGES_A_JOB
    return [
        Need("host", "rows in memory", frames * (size + FRAME_BYTES), "storage.memory"),
        Need("host", "page tables", pages * PAGE_TABLE_BYTES, key),
        Need("host", "pages on their way", moving * size, "storage.depth"),
        Need(rows_place(config), "tables", pages * size, key),
    ]


def rows_place(config: StorageConfig) -> str:
    """Where on disk the rows of tables and checkpoints lie; a place of `memory.PLACES`."""
    return "pages" if config.path else "disk"


def check_batch(config: StorageConfig, layout: RowLayout, rows: np.ndarray) -> None:
    """Raises ConfigError if the memory for rows can't hold a batch of these, with what it takes."""
    if not config.paged:
        return
    size = page_bytes(config, [layout])
    pages = np.unique(rows // (size // layout.row_bytes)).size
    frames = frames_in(present(config.memory), size)
    if pages > frames:
        raise too_small("a batch", pages, frames, size)


def ahead_bytes(config: TaskConfig, plan_bytes: int) -> int:
    """What plans take that wait for their rows to come from disk."""
    return (config.storage.look_ahead + config.pipeline.in_flight) * plan_bytes if config.storage.paged else 0


def page_bytes(config: StorageConfig, layouts: list[RowLayout]) -> int:
    """Bytes of a page. Raises ConfigError if `storage.page` is too small for a row."""
    widest = max(layout.row_bytes for layout in layouts)
    if config.page is not None and config.page < widest:
        raise ConfigError(f"a row has {widest:,} bytes, a page only {config.page:,}", "storage.page")
    return config.page or page_bytes_for([layout.row_bytes for layout in layouts])
