"""Pulling sparse rows from disk with and without direct I/O and binding: Figure 5 of Zhao et al. (k-step), section 5.1.

    python -m benchmarks.disk.pull_sparse --folder DIR-ON-THE-DISK

A click model (DLRM) trains on a generated log (Zipf 1.05) with a quarter of its table in memory. The ways to pull train
the same batches in turns, each in a process of its own:

direct, bound      past the system's page cache, `binding: auto`; what a run does by default
buffered, bound    through the page cache
buffered, unbound  and with `binding: off`
direct, one core   as the first, and all I/O threads on one core of their own, which `binding` gives a disk on a machine
                   of several NUMA nodes (here it is forced)

The page cache of each process is limited to `--cache` after its first turns (by a control group, where this user may
make one), for a table that is worth a disk is larger than the memory that is left.

Right part: seconds of `fetch`, `wait` and `read` for a batch, over the run. Left part, of the first way: Read Ins is
`plan` + `settle`, Pull Sparse all that moves rows (`fetch`, `wait`, `read`, `upload`, `download`, `write`), Train DNN
`compute`; stages overlap, so overall is no sum.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import ByteSize, TypeAdapter

from benchmarks import plots
from benchmarks.clicks.step import SETTINGS
from benchmarks.disk.eviction import SKEW, key_batches
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from benchmarks.turns import Contestant, Times, take_turns
from marius_oac.config.ctr import CtrConfig
from marius_oac.runs.session import Session
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.layout import BLOCK_BYTES
from marius_oac.storage.keys.index import KeyIndex
from marius_oac.tasks.ctr.task import start_ctr_task

PULL = ("fetch", "wait", "read")
PARTS = {
    "Read Ins": ("plan", "settle"),
    "Pull Sparse": (*PULL, "upload", "download", "write"),
    "Train DNN": ("compute",),
}
DIMENSION, ROWS_PER_PAGE = 64, BLOCK_BYTES // RowLayout(64, 64).row_bytes
UNLIMITED_TURNS = 3  # until then memory for rows, plans and blocks of the log is taken
FIRST, LAST_NAME = "direct, bound", "buffered, unbound"
WAYS = {
    FIRST: ("direct", "auto", False),
    "buffered, bound": ("buffered", "auto", False),
    LAST_NAME: ("buffered", "off", False),
    "direct, one core": ("direct", "auto", True),
}
"""storage.io, binding, whether the I/O threads are forced to one core."""


@dataclass(frozen=True)
class Race:
    """What all of them train."""

    log: str
    spec: LogSpec
    batch_size: int
    memory: int
    cache: int
    folder: str

    def config(self, io: str, binding: str) -> CtrConfig:
        return CtrConfig.build(
            {
                "task": "ctr",
                "device": "cpu",
                "binding": binding,
                "data": {"train": self.log, **self.spec.schema()},
                "model": {**SETTINGS["dlrm"][2], "dimension": DIMENSION},
                "training": {"batch_size": self.batch_size},
                "pipeline": {"in_flight": 2},
                "keys": {"capacity": 2 * self.spec.keys},
                "storage": {"memory": self.memory, "io": io},
            }
        )


class CacheLimit:
    """A control group of this process, whose page cache is kept small."""

    def __init__(self, num_bytes: int):
        mount = Path("/sys/fs/cgroup")
        first = (mount / "memory").is_dir()  # version 1
        self._group = mount / ("memory" if first else "") / f"marius-oac-{os.getpid()}"
        self._limit, self._own = ("memory.limit_in_bytes", "rss ") if first else ("memory.max", "anon ")
        self._bytes, self._most, self.works = num_bytes, 0, False
        if num_bytes:
            try:
                self._group.mkdir()
                (self._group / "cgroup.procs").write_text(str(os.getpid()))
                self.works = (self._group / self._limit).exists()
            except OSError:
                pass

    def look(self, *_: object) -> None:
        """Notes how much the process holds itself."""
        if self.works:
            lines = (self._group / "memory.stat").read_text().splitlines()
            own = next(int(line.split()[1]) for line in lines if line.startswith(self._own))
            self._most = max(self._most, own)

    def tighten(self) -> None:
        """The process may take the most that it has held so far, and the cache."""
        if self.works:
            (self._group / self._limit).write_text(str(self._most + self._bytes))

    def close(self) -> None:
        if self._group.is_dir():
            (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
            self._group.rmdir()


class Puller(Contestant):
    """A run of the pipeline with its rows on disk, some batches at a time."""

    def __init__(self, race: Race, way: str):
        io, binding, self._one_core = WAYS[way]
        config = race.config(io, binding)
        self._limit = CacheLimit(race.cache)
        task = start_ctr_task(config)[0]
        task.use_folder(Path(race.folder) / way.replace(", ", "-"))
        self._session, self._next, self._turns = Session(task), 0, []
        self._session.report_to(self._limit.look)
        self._tier = self._session.stores[0].backing
        self._note = self._session.binding.note

    def run(self, batches: int) -> None:
        if len(self._turns) >= 2 * UNLIMITED_TURNS:
            self._limit.tighten()
        if self._one_core:
            for thread in threading.enumerate():
                if thread.name.startswith("io_"):
                    os.sched_setaffinity(thread.native_id, {max(os.sched_getaffinity(0))})
        before, traffic = self._session.telemetry.total(), asdict(self._tier.traffic)
        self._next = self._session.pipeline.run(self._next, self._next + batches)
        after, now = self._session.telemetry.total(), asdict(self._tier.traffic)
        found = {stage: (total - before.get(stage, 0.0)) / batches for stage, total in after.items()}
        found |= {name: (now[name] - traffic[name]) / batches for name in now}
        self._turns.append(found)

    def report(self) -> tuple[list[dict[str, float]], str, bool]:
        """Of each turn seconds by stage and traffic, for a batch; what binding did; whether the cache was limited."""
        return self._turns[3::2], self._note, self._limit.works

    def close(self) -> None:
        self._session.__exit__(None, None, None)
        self._limit.close()


def pull_times(times: Times) -> np.ndarray:
    """Milliseconds of a batch, by turn."""
    return np.array([sum(found[stage] for stage in PULL) * 1e3 for found in times.report[0]])


def report_pull(times: dict[str, Times]) -> None:
    base = pull_times(times[LAST_NAME])
    half = len(base) // 2
    print(
        "\n| way | fetch + wait + read, ms a batch | of unbound, buffered | second half | wait alone "
        "| batch, ms | processor, ms |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, own in times.items():
        pulled = pull_times(own)
        ratio = pulled / base
        cpu = statistics.median(own.cpu_seconds) * 1e3
        waits = statistics.median(found["wait"] * 1e3 for found in own.report[0])
        print(
            f"| {name} | {np.median(pulled):.1f} | {np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f}) "
            f"| {np.median(ratio[half:]):.2f} | {waits:.1f} | {own.middle * 1e3:.1f} | {cpu:.1f} |"
        )


def report_parts(times: Times) -> None:
    turns = times.report[0]
    print("\n| part | ms a batch | of overall |\n|---|---|---|")
    for part, stages in PARTS.items():
        seconds = statistics.median(sum(found[stage] for stage in stages) for found in turns)
        print(f"| {part} | {seconds * 1e3:.1f} | {seconds / times.middle:.2f} |")
    print(f"| Overall | {times.middle * 1e3:.1f} | 1 |")
    told = {name: statistics.median(found[name] for found in turns) for name in turns[0] if name.startswith("pages")}
    print("\n" + ", ".join(f"{name.replace('_', ' ')} {count:,.0f}" for name, count in told.items()) + " a batch")


def plot(times: dict[str, Times], batches: int, path: Path) -> None:
    figure, (left, right) = plots.subplots(1, 2, figsize=(10, 4))
    first = times[FIRST]
    ends = np.arange(1, len(first.report[0]) + 1) * batches
    for part, stages in PARTS.items():
        left.plot(ends, [sum(found[stage] for stage in stages) * 1e3 for found in first.report[0]], label=part)
    left.plot(ends, np.array(first.seconds) * 1e3, label="Overall", color="black")
    left.set_title(FIRST)
    for name, own in times.items():
        right.plot(ends, pull_times(own), label=name)
    right.set_title("fetch + wait + read")
    for axes in (left, right):
        axes.set_xlabel("batches")
        axes.set_ylabel("ms a batch")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    plots.save(figure, path)


def table_pages(spec: LogSpec, batch_size: int, batches: int) -> tuple[int, float]:
    """Pages of the table that these batches leave, and pages of one of the last batches."""
    index, rows = KeyIndex("clicks", 2 * spec.keys), np.empty(spec.categorical * batch_size, np.int64)
    vocabularies = np.repeat(np.arange(spec.categorical, dtype=np.uint16), batch_size)
    for names in key_batches(spec, batch_size, batches):
        index.insert(vocabularies, names, rows)
    return -(-len(index) // ROWS_PER_PAGE), np.unique(rows // ROWS_PER_PAGE).size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = TypeAdapter(ByteSize).validate_python
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--keys", type=int, default=33_000_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=50, help="of a turn")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each way; one more before does not count")
    parser.add_argument("--budget", type=float, default=0.25, help="share of the table's pages that memory holds")
    parser.add_argument("--cache", type=size, default=size("128MiB"), help="page cache of each way; 0: no limit")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/pull_sparse.png"))
    args = parser.parse_args()
    plots.check(parser)
    print(machine(), flush=True)
    spec, batches = LogSpec(keys=args.keys, skew=SKEW), (args.rounds + 1) * (args.batches + 1)
    pages, of_batch = table_pages(spec, args.batch_size, batches)
    memory = int(args.budget * pages * 4200)
    print(
        f"{batches:,} batches of {args.batch_size}, {pages:,} pages of 4 KiB in the end, {args.budget:.0%} in memory, "
        f"{of_batch:,} of a batch",
        flush=True,
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        log = Path(folder) / "day.parquet"
        write_day(log, 0, batches * args.batch_size, spec)
        race = Race(str(log), spec, args.batch_size, memory, args.cache, folder)
        times = take_turns(
            {way: partial(Puller, race, way) for way in WAYS}, len(os.sched_getaffinity(0)), args.batches, args.rounds
        )
    _, note, limited = times[FIRST].report
    cache = f"limited to {args.cache >> 20} MiB" if limited else "not limited"
    print(f"binding: {note}; page cache {cache}; load {os.getloadavg()[0]:.1f}")
    report_pull(times)
    report_parts(times[FIRST])
    plot(times, args.batches, args.out)


if __name__ == "__main__":
    main()
