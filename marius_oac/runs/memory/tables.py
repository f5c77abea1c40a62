"""How much memory and disk tables take, in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping

from marius_oac.config.sections import StorageConfig
from marius_oac.config.task import TaskConfig
from marius_oac.runs.memory.plan import Need
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.sizes import paged_sizes


def table_needs(
    config: StorageConfig, layouts: Mapping[str, RowLayout], rows: Mapping[str, int], key: str
) -> list[Need]:
    """What tables of so many rows take in memory, and on disk while they are trained; `key` makes them smaller."""
    whole = sum(count * layouts[name].row_bytes for name, count in rows.items())
    if not config.paged:
        mapped = config.io == "mmap"
        disk = [Need("disk", "tables", whole, key)] if mapped else []
        return [Need("host", "tables", whole, key, mapped=mapped), *disk]
    sizes = paged_sizes(config, layouts, rows)
    return [
        Need("host", "rows in memory", sizes.rows, "storage.memory"),
        Need("host", "page tables", sizes.page_tables, key),
        Need("host", "pages on their way", sizes.moving, "storage.depth"),
        Need(rows_place(config), "tables", sizes.disk, key),
    ]


def rows_place(config: StorageConfig) -> str:
    """Where on disk the rows of tables and checkpoints lie; a place of `memory.PLACES`."""
    return "pages" if config.path else "disk"


def ahead_bytes(config: TaskConfig, plan_bytes: int) -> int:
    """What plans take that wait for their rows to come from disk."""
    return (config.storage.look_ahead + config.pipeline.in_flight) * plan_bytes if config.storage.paged else 0
