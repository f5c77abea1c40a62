"""Virtual parts (`nodes.parts`) by real processes on this machine: digests for each number of trainers, bytes, time.

    python -m benchmarks.nodes.parts --out DIR [--task clicks] [--trainers 1 2 3 4 8] [--pairs 3]

Each run is `marius-oac train --local-nodes N`, with 8 parts and without. Then runs of two trainers with two parts and
without take turns, and the processor seconds of all their processes are compared, starts of programs included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import yaml

from benchmarks.generate.log import LogSpec, write_day
from marius_oac.runs.folder.folder import RunFolder

BATCH, BATCHES = 2048, 120


def configure(task: str, folder: Path) -> Path:
    """Writes data and configuration."""
    training = {"batch_size": BATCH, "epochs": 1}
    if task == "clicks":
        spec = LogSpec(categorical=8, numeric=3, keys=100_000, skew=1.05)
        write_day(folder / "day.parquet", 0, BATCH * BATCHES, spec)
        tree = {
            "task": "ctr",
            "data": {"train": str(folder / "day.parquet"), **spec.schema()},
            "model": {"network": "deepfm", "dimension": 16, "hidden": [64, 32], "batch_norm": True, "dropout": 0.1},
            "training": training,
        }
    else:
        tree = {
            "data": {"path": "codex-s"},
            "model": {"decoder": "complex", "dimension": 64},
            "training": training | {"epochs": 8, "negatives": {"count": 100, "chunks": 16}},
            "evaluation": {"every": 0},
        }  # fmt: skip
    tree |= {"device": "cpu", "threads": 1}
    path = folder / f"{task}.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def trained(config: Path, out: Path, trainers: int, parts: int | None) -> dict[str, float | str]:
    """Trains by so many processes; returns the summary, with `cpu`, the processor seconds of all of them."""
    command = [
        sys.executable,
        "-m",
        "marius_oac",
        "train",
        str(config),
        "--local-nodes",
        str(trainers),
        "--out",
        str(out),
    ]
    command += ["--set", f"nodes.parts={'null' if parts is None else parts}", "--set", "pipeline.in_flight=8"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if said.returncode:
        raise SystemExit(said.stdout + said.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**RunFolder.open(out).summary(), "cpu": cpu}


def main() -> None:
    """Prints a line of JSON for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=["clicks", "graph"], default="graph")
    parser.add_argument("--trainers", type=int, nargs="*", default=[1, 2, 3, 4, 8])
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    config, bits = configure(options.task, options.out), set()

    def run(name: str, trainers: int, parts: int | None) -> dict[str, float | str]:
        found = trained(config, options.out / name, trainers, parts)
        digests = {key: value for key, value in found.items() if key.endswith("sha256")}
        figures = {key: found[key] for key in ("cpu", "training.seconds", "rows.bytes_pushed_and_asked", "dense.bytes")
                   if key in found}  # fmt: skip
        print(
            json.dumps({"run": name, **figures, **{key: str(value)[:12] for key, value in digests.items()}}), flush=True
        )
        if parts == 8:
            bits.add(json.dumps(digests, sort_keys=True))
        return found

    for trainers in options.trainers:
        run(f"parts-8-on-{trainers}", trainers, 8)
        run(f"off-on-{trainers}", trainers, None)
    print("equal on all" if len(bits) == 1 else f"{len(bits)} DIFFERENT RESULTS")
    ratios = []
    for pair in range(options.pairs):
        on, off = (run(f"pair-{pair}-{name}", 2, parts) for name, parts in (("parts-2", 2), ("off", None)))
        ratios.append(float(off["cpu"]) / float(on["cpu"]))
    if ratios:
        print(f"speed at N = V = 2 beside parts off, by processor seconds: {statistics.median(ratios):.3f}, {ratios}")


if __name__ == "__main__":
    main()
