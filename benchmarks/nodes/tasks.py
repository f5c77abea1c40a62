"""What every task reaches over nodes, beside one box: `python -m benchmarks.nodes.tasks`.

Each task is trained with three seeds on one machine, as the spread of a seed, and with the first of them over two and
three processes of this machine, pulling ahead (`oac`) and one batch at a time (`sync`). Tables and dense parameters of
the last two must have the same SHA-256.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.generate.nodes import write_features, write_labels
from benchmarks.machine import machine
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.prepare.prepare import PrepareRequest, prepare

SEEDS = (0, 1, 2)
NODES = (2, 3)
LINKS: dict[str, Any] = {
    "data": {"path": "codex-s"},
    "model": {"decoder": "distmult", "dimension": 32},
    "training": {"epochs": 3, "batch_size": 1000, "negatives": {"count": 100}},
    "evaluation": {"every": 0},
}


def with_(tree: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The tree with other values in its sections."""
    return tree | {name: tree.get(name, {}) | each for name, each in sections.items()}


def labelled(folder: Path) -> dict[str, Any]:
    """A generated graph in communities, with noisy features."""
    spec = GeneratedGraph(num_nodes=20_000, num_edges=200_000, num_clusters=10, seed=2)
    write_graph(spec, folder / "edges.npy")
    prepare(PrepareRequest(source=str(folder / "edges.npy"), out=folder / "graph", read=ReadOptions(relations=False)))
    graph = Graph.open(folder / "graph")
    write_labels(spec, graph, folder / "labels.tsv")
    write_features(spec, graph, folder / "features.parquet", 16, noise=3.0)
    return {
        "task": "node_classification",
        "data": {"path": str(folder / "graph"), "labels": str(folder / "labels.tsv")},
        "encoder": {"layers": [{"kind": "sage", "neighbors": 5, "dimension": 16}, {"kind": "gat", "neighbors": 5}],
                    "features": str(folder / "features.parquet"), "embeddings": 8, "dropout": 0.1},
        "training": {"epochs": 3, "batch_size": 500},
        "evaluation": {"every": 0},
    }  # fmt: skip


def clicks(folder: Path) -> dict[str, Any]:
    """Three generated days, each with new keys; the last is tested."""
    spec = LogSpec(categorical=6, numeric=3, keys=20_000, skew=1.05)
    for day in range(4):
        write_day(folder / f"day_{day}.parquet", day, 40_000, spec)
    files = {"train": [str(folder / f"day_{day}.parquet") for day in range(3)], "test": str(folder / "day_3.parquet")}
    return {
        "task": "ctr",
        "data": files | spec.schema(),
        "model": {"network": "deepfm", "dimension": 8, "hidden": [32]},
        "training": {"epochs": 1, "batch_size": 512, "progressive": True},
    }


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and configurations."""
    layers = [{"kind": "sage", "neighbors": 5, "dimension": 32}, {"kind": "gat", "neighbors": 5}]
    encoder = {"layers": layers, "dropout": 0.1, "optimizer": {"learning_rate": 0.005}}
    yield "links, GraphSAGE and GAT", with_(LINKS, encoder=encoder)
    yield "links, all negatives", with_(LINKS, training={"negatives": {"all": True}})
    yield "links, COMET", with_(LINKS, training={"ordering": {"kind": "comet", "partitions": 8, "buffer": 4}})
    yield "links, BETA", with_(LINKS, training={"ordering": {"kind": "beta", "partitions": 8, "buffer": 4}})
    yield "classes, GraphSAGE and GAT", labelled(folder)
    log = clicks(folder)
    yield "clicks, keys dropped after a day", with_(log, keys={"drop_after": 1})
    yield "clicks, keys admitted at the third sight", with_(log, keys={"admit_after": 3})


def trained(tree: dict[str, Any], folder: Path, *words: str) -> dict[str, Any]:
    """The summary of a run that a command trains."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        config, out = Path(place) / "config.yaml", Path(place) / "run"
        config.write_text(yaml.safe_dump(tree | {"threads": 1, "device": "cpu"}))
        command = [sys.executable, "-m", "marius_oac", "train", str(config), "--out", str(out), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads((out / "summary.json").read_text())


def metric(summary: dict[str, Any]) -> float:
    """The decisive one, of `test`."""
    return next(summary[f"test.{each}"] for each in ("filtered.mrr", "accuracy", "auc") if f"test.{each}" in summary)


def digests(summary: dict[str, Any]) -> dict[str, str]:
    """Of tables and dense parameters."""
    return {name: each for name, each in summary.items() if name.endswith("sha256")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(f"{machine()}\n")
    print("| task | one box, three seeds | " + " | ".join(f"{each} nodes | `oac` = `sync`" for each in NODES) + " |")
    print("|---|---|" + "---|---|" * len(NODES))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, tree in cases(folder):
            alone = [metric(trained(tree | {"seed": seed}, folder)) for seed in SEEDS]
            row = [case, f"{min(alone):.4f} to {max(alone):.4f}"]
            for nodes in NODES:
                words = ("--local-nodes", str(nodes), "--set")
                ahead = trained(tree, folder, *words, "pipeline.mode=oac")
                plain = trained(tree, folder, *words, "pipeline.mode=sync")
                row += [f"{metric(ahead):.4f}", "yes" if digests(ahead) == digests(plain) else "**no**"]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
