"""Seconds that a run stands still when the number of its trainers changes, with many rows; and whether its bits stay.

    python -m benchmarks.nodes.scaling  # 2.4 GB of rows: some five minutes on two cores
    python -m benchmarks.nodes.scaling --edges 8000000 --trainers 2 4 1  # the epoch must last until the last change
    python -m benchmarks.nodes.scaling --task clicks

DistMult with Adagrad on a generated graph, or DeepFM on a generated click log, whose tables have the keys that were
met before the change; `nodes.parts: 8`, one epoch. It begins with the first number of trainers; each further number is
asked for by `marius-oac scale` as soon as the one before trains. The run stands still from the last batch of the old
group to the first batch of the new one, both as `metrics.jsonl` has them, which is looked at every 20 ms. A second run,
with the first number throughout, must end with the same SHA-256 of all tables.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from marius_oac.data.prepare.prepare import PrepareRequest, prepare

PROGRAM = [sys.executable, "-m", "marius_oac"]


def written(folder: Path, nodes: int, edges: int, dimension: int) -> Path:
    """The configuration, with its graph."""
    write_graph(GeneratedGraph(num_nodes=nodes, num_edges=edges, num_relations=10), folder / "edges.npy")
    parts = {"valid_fraction": 0.0005, "test_fraction": 0.0005}
    prepare(PrepareRequest(source=str(folder / "edges.npy"), out=folder / "graph", **parts))
    config = {
        "data": {"path": str(folder / "graph")}, "model": {"decoder": "distmult", "dimension": dimension},
        "training": {"batch_size": 5000, "epochs": 1, "negatives": {"count": 100, "chunks": 5}},
        "device": "cpu", "threads": 1, "evaluation": {"every": 0, "max_edges": 100}, "nodes": {"parts": 8},
        "metrics": {"every_batches": 1},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def written_log(folder: Path, examples: int, dimension: int) -> Path:
    """The configuration, with its log, most of whose keys come once or twice."""
    spec = LogSpec(categorical=8, numeric=2, keys=4 * examples, skew=0.0)
    write_day(folder / "day.parquet", 0, examples, spec)
    config = {
        "task": "ctr", "data": {"train": str(folder / "day.parquet")} | spec.schema(),
        "model": {"network": "deepfm", "dimension": dimension, "hidden": [16]},
        "training": {"batch_size": 5000, "epochs": 1}, "device": "cpu", "threads": 1, "evaluation": {"every": 0},
        "nodes": {"parts": 8}, "metrics": {"every_batches": 1},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def trained(config: Path, run: Path, numbers: Sequence[int], begin: int) -> None:
    """Trains with each number of trainers in turn, and prints what each change took."""
    command = [*PROGRAM, "train", str(config), "--local-nodes", str(numbers[0]), "--out", str(run)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for before, count in zip(numbers, numbers[1:], strict=False):
                while batches(run) < begin and process.poll() is None:
                    time.sleep(0.1)
                print(f"| {before} -> {count} | {standstill(run, count, process):.1f} |", flush=True)
            error = process.communicate()[1]
        finally:
            process.kill()
    if process.returncode:
        raise SystemExit(error)


def batches(run: Path) -> int:
    """Lines of metrics so far."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"batch"') if path.exists() else 0


def standstill(run: Path, count: int, training: subprocess.Popen[str]) -> float:
    """Changes the number of trainers; returns the longest time without a new batch, in seconds, until the new group has
    trained one."""
    with subprocess.Popen([*PROGRAM, "scale", str(run), str(count)], stderr=subprocess.PIPE, text=True) as asked:
        there, since, longest, answered = batches(run), time.monotonic(), 0.0, None
        while answered is None or there == answered:
            time.sleep(0.02)
            if training.poll() is not None:
                raise SystemExit("the run has ended before the new group trained: it needs more edges or examples")
            now = batches(run)
            if answered is None and asked.poll() is not None:
                if asked.returncode:
                    raise SystemExit(f"not scaled: {asked.communicate()[1]}")
                answered = there
            if now != there:
                longest = max(longest, time.monotonic() - since)
                there, since = now, time.monotonic()
    return longest


def tables(run: Path) -> dict[str, str]:
    """SHA-256 of each table and of the dense parameters."""
    summary = json.loads((run / "summary.json").read_text())
    return {name: value for name, value in summary.items() if name.endswith(".sha256")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4_000_000, help="of the graph")
    parser.add_argument("--edges", type=int, default=4_000_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--task", choices=["graph", "clicks"], default="graph")
    parser.add_argument("--examples", type=int, default=3_000_000, help="of the log")
    parser.add_argument("--begin", type=int, default=1, help="batches before the first change")
    parser.add_argument("--trainers", type=int, nargs="+", default=[2, 4, 2])
    options = parser.parse_args()
    print(machine(), "\n\n| trainers | stands still, s |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        folder = Path(name)
        if options.task == "graph":
            config = written(folder, options.nodes, options.edges, options.dimension)
        else:
            config = written_log(folder, options.examples, options.dimension)
        trained(config, folder / "changed", options.trainers, options.begin)
        trained(config, folder / "same", options.trainers[:1], options.begin)
        found, expected = tables(folder / "changed"), tables(folder / "same")
    print("\nthe same SHA-256 of all tables" if found and found == expected else "\nOTHER BITS")
    return int(found != expected or not found)


if __name__ == "__main__":
    sys.exit(main())
