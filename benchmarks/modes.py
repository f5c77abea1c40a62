"""Modes of several nodes beside slow ones: a run of real processes for each, compute emulated.

    python -m benchmarks.modes          # 8 trainers of which 2 are 4 times slower (Su et al., Table 5.2), 6 minutes

Every trainer is a process of `marius-oac train --local-nodes`, on this machine; a batch takes it `--seconds`, which is
emulated by a wait (`nodes.load`), and the slow ones `--factor` times as long. All else is real: processes, transport,
dealing, aggregation, optimizers. Global examples/s are those of all batches that count, of the second half of training.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runs import machine
from marius_oac.data.log_generate import LogSpec, write_day
from marius_oac.run import RunFolder

SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "gba": {"mode": "gba"},
    "async": {"mode": "async"},
    "bsp": {"mode": "bsp"},
    "hop-bs": {"mode": "hop-bs"},
    "hop-bw": {"mode": "hop-bw"},
}


def config(options: argparse.Namespace, data: Path, nodes: dict[str, Any]) -> dict[str, Any]:
    every, slow = list(range(options.trainers)), list(range(options.trainers - options.slow, options.trainers))
    load = [{"trainers": every, "seconds": options.seconds}, {"trainers": slow, "factor": options.factor}]
    modes = {"gradients": options.slow or 1, "backups": options.slow}
    return {
        "task": "ctr", "threads": 1, "device": "cpu",
        "data": {"train": str(data)} | options.spec.schema(),
        "model": {"network": "deepfm", "dimension": 8, "hidden": [32]},
        "keys": {"capacity": 20_000},
        "training": {"batch_size": options.local_batch * options.trainers, "epochs": 2},
        "metrics": {"every_batches": 10},
        "nodes": nodes | {"packing": "even", "load": load, "modes": modes},
    }  # fmt: skip


def trained(options: argparse.Namespace, folder: Path, name: str, data: Path) -> dict[str, Any]:
    """The summary, and global examples/s."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config(options, data, SETTINGS[name])))
    command = [sys.executable, "-m", "marius_oac", "train", path, "--out", folder / name]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--local-nodes", str(options.trainers)], check=True, stdout=subprocess.PIPE, env=environment)
    run = RunFolder.open(folder / name)
    _, second = (line for line in run.metrics() if line["kind"] == "epoch")
    return run.summary() | {"rate": options.batches * options.local_batch * options.trainers / second["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trainers", type=int, default=8)
    parser.add_argument("--slow", type=int, default=2, help="so many of them are slow")
    parser.add_argument("--factor", type=float, default=4.0, help="how many times slower")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a batch of a trainer at full speed")
    parser.add_argument("--local-batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=50, help="global batches of each of the two halves")
    options = parser.parse_args()
    options.spec = LogSpec(categorical=6, numeric=4, keys=5000, skew=1.05)
    print(f"{machine()}\n{options.trainers} trainers, {options.slow} of them {options.factor:g} times slower, "
          f"{options.seconds:g} s a batch of {options.local_batch}\n")  # fmt: skip
    fast, slow = (options.trainers - options.slow) / options.seconds, options.slow / options.seconds / options.factor
    print(
        "| mode | global examples/s | of sync | of what the trainers can do | dropped | stale steps, average (most) |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data, base = Path(folder) / "day.parquet", None
        write_day(data, 0, options.batches * options.local_batch * options.trainers, options.spec)
        for name in SETTINGS:
            found = trained(options, Path(folder), name, data)
            base = base or found["rate"]
            most = (fast + slow) * options.local_batch
            stale = f"{found.get('dealt.dense_staleness', 0):.2f} ({found.get('dealt.dense_staleness_max', 0)})"
            dropped = found.get("dealt.dense_dropped", 0) / max(found.get("dealt.dense_gradients", 0), 1)
            print(f"| {name} | {found['rate']:,.0f} | {found['rate'] / base:.2f} | {found['rate'] / most:.3f} | "
                  f"{dropped:.1%} | {stale} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
