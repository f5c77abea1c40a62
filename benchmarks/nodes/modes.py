"""Modes of several nodes beside slow ones: runs of real processes, compute emulated.

    python -m benchmarks.nodes.modes            # 8 trainers 2 of them 4 times slower (Su et al., Table 5.2), 6 minutes
    python -m benchmarks.nodes.modes --day 100  # sync, gba and auto over days of four phases of 100 s each, 25 minutes

Every trainer is a process of `marius-oac train --local-nodes`, on this machine; a batch takes it `--seconds`, which is
emulated by a wait (`slow_trainers`), and the slow ones longer. All else is real: processes, transport, dealing,
aggregation, optimizers. Examples/s are global ones, of the second of two equal halves; of days, of each phase.

A day: nobody is slow; a quarter of the trainers is `--factor` times slower; half of them are 2 times slower; nobody is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from marius_oac.runs.folder.folder import RunFolder

MODES = ("sync", "gba", "async", "bsp", "hop-bs", "hop-bw")
PHASES = ("nobody slow", "a quarter slow", "half 2 x slower", "nobody slow again")
SPEC = LogSpec(categorical=6, numeric=4, keys=5000, skew=1.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=8)
    parser.add_argument("--factor", type=float, default=4.0, help="how many times slower the slow ones are")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a batch of a trainer at full speed")
    parser.add_argument("--local-batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=50, help="global batches of a half, or of all days")
    parser.add_argument("--day", type=float, help="seconds of a phase")
    parser.add_argument("--every", type=int, default=10, help="of auto: global batches between decisions")
    options = parser.parse_args()
    print(f"{machine()}\n{options.trainers} trainers, {options.seconds:g} s a batch of {options.local_batch}\n")
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        for number, name in enumerate(("train", "next")):
            write_day(options.folder / f"{name}.parquet", number, options.batches * global_batch(options), SPEC)
        (days if options.day else table)(options)


def global_batch(options: argparse.Namespace) -> int:
    return options.local_batch * options.trainers


def trained(options: argparse.Namespace, mode: str, load: Sequence[dict[str, Any]], epochs: int) -> RunFolder:
    """The run, at its end."""
    slow = options.trainers // 4
    everybody = {"trainers": list(range(options.trainers)), "seconds": options.seconds}
    config = {
        "task": "ctr", "threads": 1, "device": "cpu",
        "data": {"train": str(options.folder / "train.parquet"), "valid": str(options.folder / "next.parquet")}
        | SPEC.schema(),
        "model": {"network": "deepfm", "dimension": 8, "hidden": [32]},
        "keys": {"capacity": 20_000},
        "training": {"batch_size": global_batch(options), "epochs": epochs},
        "evaluation": {"every": epochs},
        "metrics": {"every_batches": 5},
        "nodes": {
            "mode": mode, "packing": "even",
            "mode_options": {"gradients": slow or 1, "backups": slow},
            **({"auto": {"every": options.every}} if mode == "auto" else {}),
        },
    }  # fmt: skip
    path, out = options.folder / f"{mode}.yaml", options.folder / mode
    path.write_text(yaml.safe_dump(config))
    loads = json.dumps([everybody, *load])
    words = ["train", path, "--out", out, "--local-nodes", str(options.trainers)]
    command = [sys.executable, "-m", "benchmarks.nodes.slow_trainers", loads, *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return RunFolder.open(out)


def table(options: argparse.Namespace) -> None:
    slow = options.trainers // 4
    load = [{"trainers": list(range(options.trainers - slow, options.trainers)), "factor": options.factor}]
    most = (options.trainers - slow + slow / options.factor) / options.seconds * options.local_batch
    print("| mode | examples/s | of sync's | of what the trainers can do | dropped | stale steps, average (most) |")
    print("|---|---|---|---|---|---|")
    base = None
    for mode in MODES:
        run = trained(options, mode, load, 2)
        *_, second = (line for line in run.metrics.lines() if line["kind"] == "epoch")
        rate, found = options.batches * global_batch(options) / second["seconds"], run.summary()
        base = base or rate
        dropped = found.get("dealt.dense_dropped", 0) / max(found.get("dealt.dense_gradients", 0), 1)
        stale = f"{found.get('dealt.dense_staleness', 0):.2f} ({found.get('dealt.dense_staleness_max', 0)})"
        print(f"| {mode} | {rate:,.0f} | {rate / base:.2f} | {rate / most:.3f} | {dropped:.1%} | {stale} |", flush=True)


def days(options: argparse.Namespace) -> None:
    count, phase = options.trainers, options.day
    load = [
        {
            "trainers": list(range(count - count // 4, count)),
            "factor": options.factor,
            "begin": phase,
            "end": 2 * phase,
        },
        {"trainers": list(range(count - count // 2, count)), "factor": 2.0, "begin": 2 * phase, "end": 3 * phase},
    ]
    load = [each | {"period": 4 * phase} for each in load]
    rates, aucs, switches = {}, {}, []
    for mode in ("sync", "gba", "auto"):
        run = trained(options, mode, load, 1)
        rates[mode] = phase_rates(options, run)
        aucs[mode] = next(line["auc"] for line in run.metrics.lines() if line["kind"] == "evaluation")
        switches = [line for line in run.metrics.lines() if line["kind"] == "mode"]
    print(f"| mode | {' | '.join(PHASES)} | AUC |\n|---|{'---|' * (len(PHASES) + 1)}")
    for mode, found in rates.items():
        print(f"| {mode} | {' | '.join(f'{each:,.0f}' for each in found)} | {aucs[mode]:.4f} |")
    better = [rates["auto"][each] / max(rates["sync"][each], rates["gba"][each]) for each in range(len(PHASES))]
    print(
        f"| auto / the better | {' | '.join(f'{each:.3f}' for each in better)} | {aucs['auto'] - aucs['sync']:+.4f} |"
    )
    changed = [(line["batch"], line["was"], line["mode"]) for line in switches if line["was"] != line["mode"]]
    print(
        f"\nauto decided {len(switches)} times and switched at {', '.join(f'{n} ({a} to {b})' for n, a, b in changed)}"
    )


def phase_rates(options: argparse.Namespace, run: RunFolder) -> list[float]:
    """Examples/s of each phase, over all days: by the lines of the first trainer, which tell how far all are."""
    lines = [line for line in run.metrics.lines() if line["kind"] == "interval"]
    seconds = np.cumsum([0.0, *(line["seconds"] for line in lines)])
    batches = np.array([0.0, *(line["batch"] + 1 for line in lines)])
    found = []
    for number in range(len(PHASES)):
        begins = np.arange(number * options.day, seconds[-1], len(PHASES) * options.day)
        ends = np.minimum(begins + options.day, seconds[-1])
        done = np.interp(ends, seconds, batches) - np.interp(begins, seconds, batches)
        found.append(float(done.sum() / (ends - begins).sum()) * global_batch(options) if begins.size else float("nan"))
    return found


if __name__ == "__main__":
    main()
