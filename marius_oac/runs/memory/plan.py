"""How much memory and disk a run will need; checked before it starts."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from marius_oac.config.sections import FIXED_IN_FLIGHT, PipelineConfig
from marius_oac.config.task import TaskConfig
from marius_oac.errors import InputError, size_text
from marius_oac.runs.checkpoints.checkpoint import TABLES
from marius_oac.runtime.console import logger
from marius_oac.runtime.machine import cgroups
from marius_oac.storage.saved import table_files
from marius_oac.types import present

_MIB = 1 << 20
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>
_RETURNED_BYTES = 4 * _MIB
_KEPT_BYTES = 32 * _MIB  # no larger threshold is taken
_NO_LIMIT = 1 << 62
KERNEL_BYTES = 26 * _MIB  # kernels as they are loaded, stacks and arenas of the threads: a run on 2,000 nodes x 8
BATCH_KEYS = ("training.batch_size", "training.negatives.count", "model.dimension")
"""What makes a batch large; of a log there are no negatives."""

PLACES = {"host": "host memory", "device": "device memory", "disk": "disk space", "pages": "space in storage.path"}
"""Where there may be too little; `disk` is where the run's folder is."""


@dataclass(frozen=True)
class Need:
    """Bytes of one thing in one place (`PLACES`), and the key that lowers them; None: none does.

    `mapped` bytes are pages of a file that count as the process's memory; where memory is short the kernel drops them.
    """

    place: str
    what: str
    num_bytes: int
    key: str | None
    mapped: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs; `announce` prints and checks it."""

    needs: tuple[Need, ...]
    available: dict[str, int]

    @property
    def places(self) -> list[str]:
        """The places in which something is needed."""
        return list(dict.fromkeys(need.place for need in self.needs))

    def by_place(self) -> dict[str, dict[str, int]]:
        """Of each place, what is needed and its bytes."""
        found: dict[str, dict[str, int]] = {place: {} for place in self.places}
        for need in self.needs:
            parts = found[need.place]
            parts[need.what] = parts.get(need.what, 0) + need.num_bytes
        return found

    def total(self, place: str, mapped: bool = True) -> int:
        """Bytes needed in a place, with or without those of mapped files."""
        return sum(need.num_bytes for need in self.needs if need.place == place and (mapped or not need.mapped))

    def announce(self) -> None:
        """Prints the plan on standard error. Raises InputError as `check` does."""
        logger.info(self)
        self.check()

    def check(self) -> None:
        """Raises InputError if it can't fit; names the largest part and the key that lowers it."""
        for place, available in self.available.items():
            needed = self.total(place, mapped=False)
            if needed > available:
                parts = [need for need in self.needs if need.place == place and not need.mapped]
                raise InputError(
                    f"{size_text(needed)} of {PLACES[place]} are needed and {size_text(available)} are free; "
                    + _most_of(parts, available),
                    _to_lower(parts, available),
                )

    def __str__(self) -> str:
        """A table with a column for each place. What takes less than a MiB everywhere is summed."""
        places = self.by_place()
        names = dict.fromkeys(need.what for need in self.needs)
        sizes = {name: [places[place].get(name, 0) for place in places] for name in names}
        small = [name for name, each in sizes.items() if max(each) < _MIB]
        if len(small) > 1:
            sizes["the rest"] = [sum(each) for each in zip(*(sizes.pop(name) for name in small), strict=True)]
        rows = [[name, *(_cell(size) for size in each)] for name, each in sizes.items()]
        rows.append(["together", *(_cell(self.total(place)) for place in places)])
        rows.append(["free", *(size_text(self.available[place]) for place in places)])
        title = ["memory plan", *(("storage.path" if place == "pages" else place) for place in places)]
        lines = [title, *([f"  {name}", *cells] for name, *cells in rows)]
        first = max(len(name) for name, *_ in lines)
        texts = ("".join([name.ljust(first), *(f"{cell:>14}" for cell in cells)]) for name, *cells in lines)
        return "\n".join(text.rstrip() for text in texts)


def _cell(size: int) -> str:
    return "" if not size else size_text(size) if size >= _MIB else "< 1 MiB"


def _most_of(parts: Sequence[Need], available: int) -> str:
    first, *others = sorted(parts, key=lambda need: -need.num_bytes)
    most = f"most of it: {first.what}, {size_text(first.num_bytes)}"
    if first.key is not None:
        return most
    most = f"{most}, which no setting lowers"
    return most if first.num_bytes > available else f"{most}; then {others[0].what}, {size_text(others[0].num_bytes)}"


def _to_lower(parts: Sequence[Need], available: int) -> str:
    """The key of the largest part that has one; the place where all of them would not be enough."""
    if sum(need.num_bytes for need in parts if need.key is None) > available:
        return "memory"
    return present(max((need for need in parts if need.key is not None), key=lambda need: need.num_bytes).key)


def available(device: torch.device, folder: Path, program: int, paths: Sequence[str] = ()) -> dict[str, int]:
    """Bytes free in each place; `program` of the host's are this process's own already, and what the run has on disk.

    Args:
        paths: folders of page files (`storage.path`).
    """
    free = {
        "host": cgroups.free_memory() + program,
        "disk": _free(_existing(folder)) + _taken(_below(folder)),
    }
    if paths:
        of_run = _taken(table_files(folder / TABLES))
        free["pages"] = _free_for_pages([_existing(Path(path)) for path in paths]) + of_run
    if device.type == "cuda":
        free["device"] = torch.cuda.mem_get_info(device)[0]
    return free


def key_to_lower(config: TaskConfig, *keys: str) -> str:
    """Of keys that make something large the one whose value is the most times its default; the first of several."""
    defaults = {name: field.default for name, field in type(config).model_fields.items()}

    def times(key: str) -> float:
        section, *rest = key.split(".")
        value, usual = getattr(config, section, None), defaults.get(section)
        for part in rest:
            value, usual = getattr(value, part, None), getattr(usual, part, None)
        usual = FIXED_IN_FLIGHT if usual == "auto" else usual
        return value / usual if value and usual and value != "auto" else 0.0

    return max(keys, key=times)


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def _taken(paths: Iterable[Path]) -> int:
    """Of the files among them; some may go meanwhile, such as what others export."""
    taken = 0
    for path in paths:
        with suppress(OSError):
            found = path.stat()
            taken += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return taken


def _below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _free_for_pages(folders: Sequence[Path]) -> int:
    """Bytes that files of one size, one in each folder, may take together."""
    disks = [folder.stat().st_dev for folder in folders]
    shares = [_free(folder) // disks.count(disk) for folder, disk in zip(folders, disks, strict=True)]
    return min(shares) * len(folders)


def _free(folder: Path) -> int:
    """Free bytes. A file system without a size, such as /proc, is not full; writing to it reports its own error."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total or usage.free else _NO_LIMIT


def batches_held(pipeline: PipelineConfig) -> tuple[int, int]:
    """Batches between read and write, and the buffers that they and the cache fill: the cache has rows of one batch
    fewer than are in flight, in order of arrival of twice as many (see `ledger`)."""
    if pipeline.mode == "sync":
        return 1, 1
    cached = (2 if pipeline.order == "arrival" else 1) * (pipeline.room - 1) * (pipeline.mode == "oac")
    return pipeline.room, pipeline.room + cached


def room_for(pipeline: PipelineConfig) -> int:
    """Number of buffers that may exist: one more than `batches_held` if batches are cached.

    It is taken where a batch is read between the last write and the next validation. On a host this is seldom, and a
    buffer takes memory as it is filled; on a device it takes its memory when it is allocated.
    """
    in_flight, held = batches_held(pipeline)
    return held + (held > in_flight)


def return_freed_memory() -> None:
    """Makes malloc return freed blocks of 4 MiB and more to the system, in this whole process.

    glibc otherwise raises that threshold with every block that is freed, and keeps blocks of up to 32 MiB for each
    thread: on 200,000 nodes x 100 the peak was 890 MiB in place of 790, and another one in every run. At the end of a
    heap it keeps 8 MiB: 128 KiB, as by default, made each smaller block there one that the system gives anew, too.
    Elsewhere than on glibc this does nothing.
    """
    _set_malloc(_MMAP_THRESHOLD, _RETURNED_BYTES)
    _set_malloc(_TRIM_THRESHOLD, 2 * _RETURNED_BYTES)


def keep_freed_memory() -> None:
    """Makes malloc keep freed blocks of up to 32 MiB, and 64 MiB in all at the end of its heap, in this whole process.

    For predictions, which have no plan to keep: those of a log spent 8 % of their processor seconds on memory that the
    system gave them again and again.
    """
    _set_malloc(_MMAP_THRESHOLD, _KEPT_BYTES)
    _set_malloc(_TRIM_THRESHOLD, 2 * _KEPT_BYTES)


def _set_malloc(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


def peak_rss() -> int:
    """The most memory that this process has held, in bytes."""
    # Not `ru_maxrss`: it outlives `exec`, so a process that was started by a large one begins with that one's peak.
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024
