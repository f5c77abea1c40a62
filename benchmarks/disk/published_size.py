"""A graph with the numbers of Freebase86m on one machine: every command, what it takes, and what bounds it.

    python -m benchmarks.disk.published_size --folder DIR --minutes 20                   # all steps: hours, 150 GB free
    python -m benchmarks.disk.published_size --folder DIR --scale 0.01 --minutes 0.1     # the same, small

86 million nodes, 14,824 relations, 338,586,276 edges with skewed degrees, as text with names. ComplEx of dimension 100
with row-wise Adagrad is 36 GB of rows, of which `--memory` holds a part. The steps, each of which needs those before:

generate   writes DIR/edges.tsv
prepare    makes DIR/graph of it; 0.0003 of the edges are the test set, as all of them would be ranked
train      for `--minutes` from the first batch on in every `--ordering`, then Ctrl-C; the run's checkpoint remains
evaluate   ranks the test edges among 1,000 drawn nodes
resume     trains `--batches` batches twice: without a break; and killed (-9) after the first half, then resumed.
           `compare` must find the same bits

Of each command: seconds, processor seconds, the peak of its resident memory, and what the memory plan said. Of
training: examples/s of the second half, of all, and the busiest stage. What the disk can do: `python -m
benchmarks.disk.page_io --folder DIR`. Each step prints lines and adds them to DIR/figures.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.machine import machine
from marius_oac.runs.compare import compare
from marius_oac.runs.folder.folder import RunFolder

NODES, RELATIONS, EDGES = 93_600_000, 14_824, 338_586_276  # 86 million of these nodes have an edge
ORDERINGS = {"shuffle": {}, "comet": {"ordering": {"kind": "comet", "partitions": 64, "buffer": 16}}}
STEPS = ("generate", "prepare", "train", "evaluate", "resume")
TEST_FRACTION = 0.0003


@dataclass
class Child:
    """A command that has ended: exit code, seconds, processor seconds, peak resident bytes, bytes read from and written
    to disks, its output."""

    code: int
    seconds: float
    cpu_seconds: float
    peak: int
    read: int
    written: int
    output: str

    def planned(self) -> str:
        """What the memory plan said that the host needs."""
        found = re.search(r"^host +(.+?) of", self.output, re.MULTILINE)
        return found[1] if found else ""


def command(
    words: Sequence[str], log: Path, until: Callable[[], bool] | None = None, end: int = signal.SIGINT
) -> Child:
    """Runs `marius-oac WORDS`; once `until()` holds it gets the signal `end`."""
    began = time.perf_counter()
    with log.open("wb") as out:
        child = subprocess.Popen([sys.executable, "-m", "marius_oac", *words], stdout=out, stderr=out)
        sent = False
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if until and not sent and until():
                child.send_signal(end)
                sent = True
            time.sleep(0.2)
    child.returncode = os.waitstatus_to_exitcode(status)
    took = time.perf_counter() - began
    return Child(
        child.returncode, took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, usage.ru_inblock * 512,
        usage.ru_oublock * 512, log.read_text("utf-8", errors="replace"),
    )  # fmt: skip


class Study:
    """The steps, in one folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, options.folder
        self.edges, self.graph = self.folder / "edges.tsv", self.folder / "graph"

    def run(self, words: Sequence[str], expect: int = 0, **until) -> Child:
        """Runs a command and tells what it took. Ends the program if its exit code is another one."""
        done = command([str(word) for word in words], self.folder / "command.log", **until)
        if done.code != expect:
            raise SystemExit(f"{' '.join(map(str, words))}: exit code {done.code}\n{done.output[-2000:]}")
        self.tell(
            " ".join(str(word) for word in words if str(word)[0] != "-"), seconds=round(done.seconds, 1),
            cpu_seconds=round(done.cpu_seconds, 1), peak_gib=round(done.peak / 2**30, 2), planned=done.planned(),
            gb_read=round(done.read / 1e9, 1), gb_written=round(done.written / 1e9, 1),
        )  # fmt: skip
        return done

    def tell(self, what: str, **figures) -> None:
        print(f"{what}: " + ", ".join(f"{name} {value}" for name, value in figures.items()), flush=True)
        with (self.folder / "figures.jsonl").open("a") as file:
            print(json.dumps({"what": what, **figures}), file=file)

    def generate(self) -> None:
        scale = self.options.scale
        spec = GeneratedGraph(
            num_nodes=int(NODES * scale), num_edges=int(EDGES * scale), num_relations=max(2, int(RELATIONS * scale)),
            seed=1,
        )  # fmt: skip
        began = time.perf_counter()
        write_graph(spec, self.edges)
        took = time.perf_counter() - began
        self.tell("generate", seconds=round(took, 1), gigabytes=round(self.edges.stat().st_size / 1e9, 2))

    def prepare(self) -> None:
        fractions = ["--valid-fraction", TEST_FRACTION, "--test-fraction", TEST_FRACTION, "--unseen", "keep"]
        done = self.run(["prepare", self.edges, "--out", self.graph, *fractions])
        self.tell("graph", says=done.output.strip().splitlines()[-2:])

    def config(self, ordering: str, every_batches: int = 0) -> Path:
        """Writes DIR/ORDERING.yaml."""
        path = self.folder / f"{ordering}-{every_batches}.yaml"
        training = {
            "epochs": 1,
            "batch_size": self.options.batch_size,
            "negatives": {"count": 500, "chunks": max(1, self.options.batch_size // 5000)},
            "optimizer": {"kind": "rowwise_adagrad", "learning_rate": 0.1},
            **ORDERINGS[ordering],
        }
        path.write_text(
            yaml.safe_dump(
                {
                    "data": {"path": str(self.graph)},
                    "model": {"decoder": "complex", "dimension": 100},
                    "training": training,
                    "storage": {"memory": self.options.memory, "look_ahead": self.options.look_ahead},
                    "checkpoint": {"every_batches": every_batches, "keep": 2 if every_batches else 1},
                    "evaluation": {"every": 0, "candidates": 1000, "filtered": False},
                    "metrics": {"every_batches": 20},
                }
            )
        )
        return path

    def train(self) -> None:
        for ordering in self.options.ordering:
            run = self.folder / ordering
            metrics, first = run / "metrics.jsonl", []

            def enough(metrics: Path = metrics, first: list[float] = first) -> bool:
                if not first and metrics.exists() and metrics.stat().st_size:
                    first.append(time.monotonic())
                return bool(first) and time.monotonic() - first[0] > 60 * self.options.minutes

            self.run(["train", self.config(ordering), "--out", run], expect=130, until=enough)
            self.tell(f"speed in the order {ordering}", **_speed(run))

    def evaluate(self) -> None:
        for ordering in self.options.ordering:
            done = self.run(["eval", self.folder / ordering])
            self.tell(f"quality in the order {ordering}", says=_lines(done.output, "mrr", "hits@10"))

    def resume(self) -> None:
        half, whole = self.options.batches // 2, self.options.batches
        config = self.config("shuffle", half)
        runs = [self.folder / name for name in ("unbroken", "killed")]

        def saved(run: Path, batch: int) -> Callable[[], bool]:
            return lambda: (run / "checkpoints" / f"{batch:010}" / "manifest.json").exists()

        self.run(["train", config, "--out", runs[0]], expect=130, until=saved(runs[0], whole))
        self.run(["train", config, "--out", runs[1]], expect=-9, until=saved(runs[1], half), end=signal.SIGKILL)
        self.run(["resume", runs[1]], expect=130, until=saved(runs[1], whole))
        first, second = (RunFolder.open(run).checkpoints.open(f"{whole:010}") for run in runs)
        self.tell(f"batch {whole} of both", says=str(compare(first, second)).splitlines())
        for run in runs:
            shutil.rmtree(run)


def _speed(run: Path) -> dict[str, float | str]:
    """Of the second half of a run's intervals: examples/s, and the stage that was busy longest."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["kind"] == "interval"]
    late = lines[len(lines) // 2 :]

    def speed(of: list[dict]) -> int:
        return round(sum(line["examples_per_second"] * line["seconds"] for line in of) / _seconds(of))

    names = {name for line in late for name in line["stage_seconds"]}
    stages = {name: sum(line["stage_seconds"].get(name, 0.0) for line in late) for name in names}
    busiest = max(stages, key=stages.__getitem__)
    return {
        "batches": lines[-1]["batch"] + 1,
        "examples_per_second": speed(late),
        "of_all": speed(lines),
        "busiest": f"{busiest}, {stages[busiest] / _seconds(late):.0%}",
    }


def _seconds(intervals: list[dict]) -> float:
    return sum(line["seconds"] for line in intervals)


def _lines(output: str, *ends: str) -> list[str]:
    return [line.strip() for line in output.splitlines() if line.split() and line.split()[0].endswith(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--ordering", nargs="+", choices=list(ORDERINGS), default=list(ORDERINGS))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of nodes, relations and edges")
    parser.add_argument("--minutes", type=float, default=20.0, help="of training in each order")
    parser.add_argument("--batches", type=int, default=40, help="of the step resume")
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--memory", default="12GiB", help="for rows")
    parser.add_argument("--look-ahead", type=int, default=16)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(machine())
    study = Study(options)
    for step in options.steps:
        getattr(study, step)()


if __name__ == "__main__":
    main()
