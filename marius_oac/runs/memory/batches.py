"""How much memory and disk tables, the batches in flight and the checkpoints of a graph's rows take; see `memory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from marius_oac.config.sections import StorageConfig
from marius_oac.config.task import TaskConfig
from marius_oac.data.batches.rank_slice import RankSlice, SlicedPlanner, with_share
from marius_oac.models.compute.arranged import arranged
from marius_oac.pipeline.device import buffer_bytes
from marius_oac.pipeline.packing import data_bytes
from marius_oac.runs.memory.plan import BATCH_KEYS, Need, batches_held, key_to_lower, room_for
from marius_oac.storage.contract import ROWS_PER_BLOCK, RowLayout
from marius_oac.storage.sizes import check_batch, paged_sizes
from marius_oac.types import Plan, TableSpec, arrays_of, present


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
    return (config.storage.look_ahead + config.pipeline.room) * plan_bytes if config.storage.paged else 0


def part_needs(parts: int, rows: int, copied: int, floats: int, key: str) -> list[Need]:
    """What a trainer with all virtual parts of a batch holds beside it: each part's copy of its rows, `copied` in all,
    and a sum over the batch's rows for each level of the tree of parts.

    Args:
        rows: of the batch. floats: of a row's values. key: makes the batch smaller.
    """
    levels = max(1, (parts - 1).bit_length())
    return [Need("host", "virtual parts", 4 * floats * copied + levels * rows * (4 * floats + 1), key)]


def rows_of_parts(planner: SlicedPlanner, parts: int) -> int:
    """Rows of the virtual parts of the first batch, each by itself."""
    plans = (with_share(planner, RankSlice(part, parts)).plan(0) for part in range(parts))
    return sum(rows.size for plan in plans for rows in plan.rows if plan.data.share)


@dataclass(frozen=True)
class BatchMemory:
    """Of a run whose batches are like `plan`, the first one.

    Args:
        tables: of the batches' rows; a device has buffers for the most rows that a batch may have.
        layouts: of each table.
        rows: of a batch as it comes, in all tables.
        shared_rows: the ids of all plans' rows are one array.
        of_parts: `rows_of_parts`; 0: there are none.

    Raises:
        ConfigError: the memory for rows can't hold the batch.
    """

    config: TaskConfig
    plan: Plan
    tables: Sequence[TableSpec]
    layouts: Mapping[str, RowLayout]
    rows: int
    shared_rows: bool = False
    of_parts: int = 0

    def __post_init__(self) -> None:
        for layout, rows in zip(self.layouts.values(), self.plan.rows, strict=True):
            check_batch(self.config.storage, layout, rows)

    @property
    def width(self) -> int:
        """Floats of a row in all tables."""
        return sum(each.width for each in self.layouts.values())

    def needs(self, device: torch.device) -> list[Need]:
        """Of batches."""
        pipeline = self.config.pipeline
        plan_bytes = 8 * self.rows * (not self.shared_rows) + sum(array.nbytes for array in arrays_of(self.plan.data))
        in_flight, held = batches_held(pipeline)
        plans = (held + in_flight + pipeline.most_workers("plan")) * plan_bytes + ahead_bytes(self.config, plan_bytes)
        key = key_to_lower(self.config, "pipeline.in_flight", *BATCH_KEYS)
        if device.type == "cpu":
            batches = Need("host", "batches", held * self.rows * (4 * self.width + 8) + plans, key)
            if not self.of_parts:
                return [batches]
            floats = sum(each.dimension for each in self.layouts.values())
            return [batches, *part_needs(present(self.config.nodes.parts), self.rows, self.of_parts, floats, key)]
        data = arranged(self.plan.data, self.plan.rows, device)
        staged = buffer_bytes(self.tables, self.layouts.values(), data)
        beside = data_bytes(data) - data_bytes(self.plan.data)
        return [
            Need("host", "batches", in_flight * (staged + beside) + plans, key),
            Need("device", "batches", room_for(pipeline) * staged, key),
        ]

    def saved(self, rows: int, dense: int, evaluation: int, device: torch.device) -> list[Need]:
        """Of checkpoints of so many rows and `dense` bytes beside them, and of an evaluation: never both at once."""
        block = min(rows, ROWS_PER_BLOCK) * self.width * 4 * 2 + 2 * dense
        copies = self.config.checkpoint.keep + 2 - self.config.storage.paged
        on_disk = copies * (rows * (4 * self.width + 8) * bool(self.width) + dense)
        needs = [Need(rows_place(self.config.storage), "checkpoints", on_disk, "checkpoint.keep")]
        if device.type == "cpu":
            what = "evaluation" if evaluation > block else "checkpoints"
            return [Need("host", what, max(evaluation, block), "evaluation.memory"), *needs]
        needs.append(Need("host", "checkpoints", block, "model.dimension"))
        needs.append(Need("device", "evaluation", evaluation, "evaluation.memory"))
        return needs
