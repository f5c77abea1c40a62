"""The printed memory plan against the peak of the process that then trains, evaluates and saves.

    python -m benchmarks.graphs.memory_plan  # 200,000 nodes, 1,000,000 edges, dimension 100
    python -m benchmarks.graphs.memory_plan --nodes 1000000 --edges 5000000
    python -m benchmarks.graphs.memory_plan --nodes 10500000 --disk 0.1  # 8.5 GB, a tenth of it in memory

Every run is a process of its own (`marius-oac train`), because the peak of a process never falls; it is read from
outside, in /proc/PID/status.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.machine import machine
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.prepare.prepare import PrepareRequest, prepare

BOUND = 0.15
ROW_BYTES = 808  # of dimension 100 with Adagrad
SETTINGS = {
    "ComplEx, oac, 4 in flight": [],
    "ComplEx, oac, 16 in flight": ["pipeline.in_flight=16"],
    "TransE, sync": ["model.decoder=transe", "pipeline.mode=sync"],
    "GraphSAGE over two layers": ["model.decoder=dot", "encoder.layers=[{kind: sage}, {kind: sage}]"],
    "GAT": ["model.decoder=dot", "encoder.layers=[{kind: gat}]"],
    "SGD, async, bfloat16": ["training.optimizer.kind=sgd", "pipeline.mode=async", "storage.dtype=bfloat16"],
}


def make_graph(folder: Path, nodes: int, edges: int) -> Path:
    """A graph folder with 500 edges each to validate and test on."""
    source, share = folder / "edges.npy", 500 / edges
    write_graph(GeneratedGraph(num_nodes=nodes, num_edges=edges, num_relations=20), source)
    prepare(PrepareRequest(source=str(source), out=folder / "graph", valid_fraction=share, test_fraction=share))
    source.unlink()
    return folder / "graph"


def make_pairs(folder: Path, nodes: int) -> Path:
    """A graph folder in which each node has one edge: the fewest edges that touch a whole table."""
    source, share = folder / "edges.npy", 1000 / nodes
    np.save(source, np.random.default_rng(0).permutation(nodes // 2 * 2).reshape(-1, 2))
    request = {"valid_fraction": share, "test_fraction": share, "unseen": "keep"}
    prepare(PrepareRequest(source=str(source), out=folder / "graph", read=ReadOptions(relations=False), **request))
    source.unlink()
    return folder / "graph"


def measure(graph: Path, folder: Path, overrides: list[str]) -> tuple[int, int, str]:
    """Trains an epoch; returns the planned and the peak bytes of the host, and what the command said."""
    tree = {
        "data": {"path": str(graph)},
        "model": {"dimension": 100},
        "training": {"epochs": 1, "batch_size": 10000, "negatives": {"count": 100, "chunks": 10}},
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(tree))
    command = [sys.executable, "-m", "marius_oac", "train", str(config), "--out", str(folder / "run")]
    command += [word for item in overrides for word in ("--set", item)]
    with open(folder / "err", "w") as errors:
        process, peak = subprocess.Popen(command, stderr=errors, stdout=subprocess.DEVNULL), 0
        while process.poll() is None:
            with contextlib.suppress(StopIteration, OSError):  # it is about to end
                status = Path(f"/proc/{process.pid}/status").read_text("ascii").splitlines()
                peak = max(peak, next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) << 10)
            time.sleep(0.05)
    said = (folder / "err").read_text()
    if process.returncode:
        sys.exit(said)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return summary["machine.planned_bytes.host"], peak, said


def settings(nodes: int, disk: float | None) -> dict[str, list[str]]:
    """What is measured: the settings in memory, or one with a share of the table in memory and the others on disk."""
    if disk is None:
        return SETTINGS
    table = nodes * ROW_BYTES
    few = ["evaluation.candidates=1000", "checkpoint.keep=1", "model.decoder=dot"]  # few: ranks take time, no memory
    return {f"{table / 1e9:.1f} GB, {disk:.0%} in memory": [f"storage.memory={int(table * disk)}", *few]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--disk", type=float, help="rows on disk, this share of the table in memory")
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        graph = make_pairs(place, args.nodes) if args.disk else make_graph(place, args.nodes, args.edges)
        print("| setting | planned MiB | peak MiB | peak / planned |\n|---|---:|---:|---:|")
        ratios = []
        for number, (name, overrides) in enumerate(settings(args.nodes, args.disk).items()):
            place = Path(folder) / str(number)
            place.mkdir()
            planned, peak, _ = measure(graph, place, overrides)
            ratios.append(peak / planned)
            print(f"| {name} | {planned >> 20:,} | {peak >> 20:,} | {ratios[-1]:.3f} |", flush=True)
            shutil.rmtree(place)
    worst = max(abs(ratio - 1) for ratio in ratios)
    print(f"worst: {worst:.1%} apart (bound: {BOUND:.0%})")
    sys.exit(worst > BOUND)


if __name__ == "__main__":
    main()
