"""Training with a part of the rows in memory: examples/s of the disk tier against all in memory, and against mmap.

    python -m benchmarks.disk.training               # clicks, a quarter of the rows in memory
    python -m benchmarks.disk.training --task graph  # a graph with uniform negatives

Clicks: a generated log (Zipf 1.05), DLRM, rows numbered as the log first names their keys; a pass over the log comes
first, and measured is the second from its middle on: a pass begins with keys that lie side by side. Graph: generated,
ends skewed, negatives uniform: nothing to look ahead to but what is there by chance. All pages have been written
before, so that none is merely computed. "mmap" is the same table in a mapped file, in a control group with the memory
that the disk tier's process takes (as root; else it is left out, aloud). `turns` says how the contestants share the
machine.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from benchmarks.turns import Contestant, take_turns
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.session import Session
from marius_oac.runs.task import Task
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask

GROUPS = Path("/sys/fs/cgroup/memory")


def click_tree(folder: Path, options: argparse.Namespace) -> dict:
    """Writes the log; returns the configuration."""
    spec = LogSpec(categorical=26, numeric=13, keys=options.keys, skew=1.05)
    write_day(folder / "day.parquet", 0, options.examples, spec)
    return {
        "task": "ctr",
        "data": {"train": str(folder / "day.parquet"), **spec.schema()},
        "keys": {"capacity": options.keys},  # not what the memory at hand allows: mmap has less of it
        "model": {"network": "dlrm", "dimension": 16, "bottom": [512, 256], "hidden": [512, 256]},
        "training": {"batch_size": options.batch or 4096, "epochs": 1000},
    }


def graph_tree(folder: Path, options: argparse.Namespace) -> dict:
    """Writes and prepares the graph; returns the configuration."""
    spec = GeneratedGraph(num_nodes=options.nodes, num_edges=5 * options.nodes, num_relations=0)
    write_graph(spec, folder / "edges.npy")
    shares = {"valid_fraction": 1e-4, "test_fraction": 1e-4}
    read = ReadOptions(relations=False)
    prepare(PrepareRequest(source=str(folder / "edges.npy"), out=folder / "graph", read=read, **shares))
    return {
        "data": {"path": str(folder / "graph")},
        "model": {"decoder": "dot", "dimension": options.dimension},
        "training": {
            "batch_size": options.batch or 50_000,
            "epochs": 1000,
            "negatives": {"count": options.negatives, "chunks": options.chunks},
        },
    }


def make_task(tree: dict, *overrides: str) -> Task:
    config = Config.build({"device": "cpu", "evaluation": {"every": 0}, **tree}, overrides)
    if config.task == "ctr":
        return start_ctr_task(config)[0]
    return GraphTask(config, Graph.open(config.data.path))


class Training(Contestant):
    """A session that goes on from a checkpoint."""

    def __init__(self, tree: dict, folder: Path, overrides: list[str], limit: int | None = None):
        self._group = None
        if limit is not None:
            self._group = GROUPS / f"marius-oac-{os.getpid()}"
            self._group.mkdir()
            before = psutil.Process().memory_info().rss  # is in no group: what comes after it counts
            (self._group / "memory.limit_in_bytes").write_text(str(limit - before))
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        self._session = Session(make_task(tree, *overrides))
        checkpoint = Checkpoints(folder).open(verify=False)
        self._session.task.load_state_arrays(checkpoint.arrays())
        checkpoint.restore(self._session.stores)
        self._next, self._batches, self._first = checkpoint.extra["next"], 0, None

    def run(self, batches: int) -> None:
        tier = self._session.stores[0].backing
        self._next = self._session.pipeline.run(self._next, self._next + batches)
        if self._first is None and tier.look_ahead:
            self._first = dict(vars(tier.traffic))
        elif self._first is not None:
            self._batches += batches

    def report(self) -> str:
        stages, count = self._session.telemetry.total(), self._session.task.config.training.batch_size
        said = f"RSS {psutil.Process().memory_info().rss >> 20:,} MiB, batches of {count:,}"
        tier = self._session.stores[0].backing
        if self._first and self._batches:
            moved = {name: (value - self._first[name]) / self._batches for name, value in vars(tier.traffic).items()}
            said += ", per batch: " + ", ".join(f"{name} {value:,.0f}" for name, value in moved.items())
        return said + "; busy s: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.items())

    def close(self) -> None:
        self._session.__exit__(None, None, None)


def populate(tree: dict, folder: Path) -> int:
    """Trains a little in memory and saves; returns the bytes of all tables."""
    with Session(make_task(tree)) as session:
        clicks = tree.get("task") == "ctr"
        last = session.task.schedule.ends[0] if clicks else 2
        session.pipeline.run(0, last)
        bytes_of_tables = sum(store.nbytes for store in session.stores)
        arrays = session.task.state_arrays()
        following = {"next": last + last // 2 if clicks else last}
        Checkpoints(folder).save(last, session.stores, session.step.dense_state(), following, 1, arrays)
    return bytes_of_tables


@contextmanager
def workplace(folder: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        yield Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(description="Examples/s with rows on disk.")
    parser.add_argument("--task", choices=("clicks", "graph"), default="clicks")
    parser.add_argument("--share", type=float, default=0.25, help="of the rows, in memory")
    parser.add_argument("--keys", type=int, default=20_000_000, help="distinct keys of the day that the log is from")
    parser.add_argument("--examples", type=int, default=1_500_000, help="of the log")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=100, help="of the graph's embeddings")
    parser.add_argument("--negatives", type=int, default=1000, help="uniform, per side, shared by a chunk")
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--batch", type=int, help="examples per batch (4096 clicks, 50,000 edges)")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--batches", type=int, default=20, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="their median is reported")
    parser.add_argument("--folder", help="where the disk is")
    options = parser.parse_args()
    with workplace(options.folder) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        tree = (click_tree if options.task == "clicks" else graph_tree)(folder, options)
        tables = populate(tree, folder / "checkpoints")
        budget = int(tables * options.share)
        made = partial(Training, tree, folder / "checkpoints")
        factories = {"memory": partial(made, []), "disk": partial(made, [f"storage.memory={budget}"])}
        if os.access(GROUPS, os.W_OK):
            alone = take_turns({"disk": factories["disk"]}, options.cores, options.batches, 1)
            limit = int(re.match(r"RSS ([\d,]+) MiB", alone["disk"].report)[1].replace(",", "")) << 20
            factories["mmap"] = partial(made, ["storage.io=mmap"], limit)
        else:
            sys.stderr.write(f"{GROUPS} can't be written: mmap under a limit of memory is left out\n")
        times = take_turns(factories, options.cores, options.batches, options.rounds)
    size = tree["training"]["batch_size"]
    print(f"{machine()}\n{options.task}, tables of {tables / 2**20:,.0f} MiB, {options.share:.0%} of them in memory")
    print(f"  {'':<8}{'examples/s':>12}{'ms':>9}{'CPU ms':>9}{'x memory':>10}{'x mmap':>8}")
    for name, mine in times.items():
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        print(f"  {name:<8}{size / mine.middle:>12,.0f}{mine.middle * 1e3:>9.1f}{cpu * 1e3:>9.1f}", end="")
        print(f"{mine.times_faster(times['memory']):>10.2f}", end="")
        print(f"{mine.times_faster(times['mmap']):>8.2f}" if "mmap" in times else "")
    for name, mine in times.items():
        print(f"  {name}: {mine.report}")


if __name__ == "__main__":
    main()
