"""The printed memory plan against the peak of the process that then trains, evaluates and saves.

    python benchmarks/memory_plan.py                       # 200,000 nodes, 1,000,000 edges, dimension 100
    python benchmarks/memory_plan.py --nodes 1000000 --edges 5000000

Every run is a process of its own (`marius-oac train`), because the peak of a process never falls.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from marius_oac.data.generate import GeneratedGraph, write_graph
from marius_oac.data.prepare import PrepareRequest, prepare

BOUND = 0.15
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
SETTINGS = {
    "ComplEx, oac, 4 in flight": [],
    "ComplEx, oac, 16 in flight": ["pipeline.in_flight=16"],
    "TransE, sync": ["model.decoder=transe", "pipeline.mode=sync"],
    "SGD, async, bfloat16": ["training.optimizer.kind=sgd", "pipeline.mode=async", "storage.dtype=bfloat16"],
}


def make_graph(folder: Path, nodes: int, edges: int) -> Path:
    """A graph folder with 500 edges each to validate and test on."""
    source, share = folder / "edges.npy", 500 / edges
    write_graph(GeneratedGraph(num_nodes=nodes, num_edges=edges, num_relations=20), source)
    prepare(PrepareRequest(source=str(source), out=folder / "graph", valid_fraction=share, test_fraction=share))
    source.unlink()
    return folder / "graph"


def measure(graph: Path, folder: Path, overrides: list[str]) -> tuple[int, int, str]:
    """Trains an epoch; returns the planned and the peak bytes of the host, and the plan's line."""
    tree = {
        "data": {"path": str(graph)},
        "model": {"dimension": 100},
        "training": {"epochs": 1, "batch_size": 10000, "negatives": {"count": 100, "chunks": 10}},
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(tree))
    command = [sys.executable, "-m", "marius_oac", "train", str(config), "--out", str(folder / "run")]
    command += [word for item in overrides for word in ("--set", item)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in done.stderr.splitlines() if line.startswith("host"))
    number, unit = re.match(r"host\s+([\d.]+) (MiB|GiB)", line).groups()
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return int(float(number) * UNITS[unit]), summary["memory.peak_rss_bytes"], line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    args = parser.parse_args()
    memory = psutil.virtual_memory().total >> 30
    print(f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}), {memory} GiB, {datetime.date.today()}")
    with tempfile.TemporaryDirectory() as folder:
        graph = make_graph(Path(folder), args.nodes, args.edges)
        print("| setting | planned MiB | peak MiB | peak / planned |\n|---|---:|---:|---:|")
        ratios = []
        for number, (name, overrides) in enumerate(SETTINGS.items()):
            place = Path(folder) / str(number)
            place.mkdir()
            planned, peak, _ = measure(graph, place, overrides)
            ratios.append(peak / planned)
            print(f"| {name} | {planned >> 20:,} | {peak >> 20:,} | {ratios[-1]:.3f} |", flush=True)
    worst = max(abs(ratio - 1) for ratio in ratios)
    print(f"worst: {worst:.1%} apart (bound: {BOUND:.0%})")
    sys.exit(worst > BOUND)


if __name__ == "__main__":
    main()
