"""How much memory and disk a run will need, said before it starts, and refused where it can't fit."""

from __future__ import annotations

import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from marius_oac.config import Config
from marius_oac.data.graph import Graph
from marius_oac.errors import InputError
from marius_oac.session import entity_layout, make_planner, num_model_relations, pick_device

_MIB = 1 << 20


@dataclass(frozen=True)
class Need:
    """Bytes of one thing in one place (`host`, `device` or `disk`), and the key that lowers them."""

    place: str
    what: str
    num_bytes: int
    key: str


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs; `announce` prints and checks it."""

    needs: tuple[Need, ...]
    available: dict[str, int]

    def total(self, place: str) -> int:
        return sum(need.num_bytes for need in self.needs if need.place == place)

    def announce(self) -> None:
        """Prints the plan on standard error.

        Raises:
            InputError: it can't fit; names the largest part and the key that lowers it.
        """
        sys.stderr.write(f"{self}\n")
        for place, available in self.available.items():
            needed = self.total(place)
            if needed > available:
                largest = max((need for need in self.needs if need.place == place), key=lambda need: need.num_bytes)
                raise InputError(
                    f"{_size(needed)} of {place} memory are needed and {_size(available)} are free; "
                    f"most of it: {largest.what}, {_size(largest.num_bytes)}"
                    if place != "disk"
                    else f"{_size(needed)} of disk are needed for checkpoints and {_size(available)} are free",
                    largest.key,
                )

    def __str__(self) -> str:
        lines = []
        for place in dict.fromkeys(need.place for need in self.needs):
            parts = ", ".join(f"{need.what} {_size(need.num_bytes)}" for need in self.needs if need.place == place)
            lines.append(f"{place:<7}{_size(self.total(place)):>10} of {_size(self.available[place])} free: {parts}")
        return "\n".join(lines)


def plan_memory(config: Config, graph: Graph, folder: Path) -> MemoryPlan:
    """The plan of a run that starts now and writes to `folder`."""
    device, planner, layout = pick_device(config.device), make_planner(config, graph), entity_layout(config)
    (table,) = planner.tables
    in_flight = 1 if config.pipeline.mode == "sync" else config.pipeline.in_flight
    buffers = in_flight * (2 if config.pipeline.mode == "oac" else 1)
    buffer_bytes = table.max_batch_rows * (4 * layout.width + 16)
    on_host = device.type == "cpu"
    store = table.num_rows * layout.row_bytes
    scores = _step_bytes(config, table.max_batch_rows, layout.width)
    relations = num_model_relations(config, graph) * layout.width * 4 * 2
    where = "host" if on_host else "device"
    needs = [
        Need("host", "this program", psutil.Process().memory_info().rss, "storage"),
        Need("host", "tables", store, "model.dimension"),
        Need("host", "batches", (buffers if on_host else in_flight) * buffer_bytes, "pipeline.in_flight"),
        Need(where, "compute", scores + relations, "training.batch_size"),
        Need(where, "evaluation", config.evaluation.memory * _MIB // 4, "evaluation.memory"),
        Need("disk", "checkpoints", (config.checkpoint.keep + 2) * table.num_rows * (4 * layout.width + 8),
             "checkpoint.keep"),
    ]  # fmt: skip
    available = {"host": psutil.virtual_memory().available + needs[0].num_bytes,
                 "disk": shutil.disk_usage(Path.cwd()).free}  # fmt: skip
    if not on_host:
        needs.insert(3, Need("device", "batches", (buffers + 1) * buffer_bytes, "pipeline.in_flight"))
        available["device"] = torch.cuda.mem_get_info(device)[0]
    return MemoryPlan(tuple(needs), available)


def _step_bytes(config: Config, rows: int, width: int) -> int:
    """Scores of a batch, candidates and their gradients."""
    training = config.training
    sides = 1 if config.model.reciprocal else 2
    candidates = rows if training.negatives.all else training.negatives.count
    scores = min(sides * training.batch_size * candidates, 1 << 25)
    return 4 * (scores + 3 * rows * width + 6 * sides * training.batch_size * config.model.dimension)


def peak_rss() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / _MIB:.0f} MiB"
