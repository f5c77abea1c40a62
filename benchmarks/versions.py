"""The speed of two checkouts of this package, each training in turn what users train, with the medians of their ratios.

    python -m benchmarks.versions ../before .       # 15 rounds, a quarter of an hour

Each round trains every configuration with either checkout, in a process whose PYTHONPATH is that checkout; which goes
first changes from round to round. Only the command line and `summary.json` are used, so that any two versions can be
compared. What is compared are examples per second of training, without start, evaluation and checkpoints. Prints a
table: medians of both, the median of the rounds' ratios with its 95 % interval (bootstrap), and whether the trained
tables have the same bits.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

from benchmarks.machine import machine

ROUNDS = 15
_EVALUATE_LITTLE = {"every": 0}
_GRAPH = {
    "data": {"path": "codex-s"},
    "model": {"dimension": 100},
    "training": {"epochs": 12, "batch_size": 5000},
    "evaluation": _EVALUATE_LITTLE,
}
CONFIGS = {
    "steps, one after another": _GRAPH | {"pipeline": {"mode": "sync"}},
    "batches in flight": _GRAPH | {"pipeline": {"mode": "oac"}},
    "clicks from Parquet": {
        "task": "ctr",
        "data": {"train": ["log/*.parquet"]},
        "training": {"epochs": 1, "batch_size": 4096},
        "evaluation": _EVALUATE_LITTLE,
    },
}


def write_log(folder: Path) -> dict:
    """A generated click log, and its columns as a configuration names them."""
    words = ["--out", str(folder), "--days", "1", "--rows", "150000", "--keys", "200000"]
    subprocess.run([sys.executable, "-m", "benchmarks.generate.log", *words], check=True, capture_output=True)
    text = subprocess.run(
        [sys.executable, "-m", "marius_oac", "init", str(next(folder.glob("*.parquet")))],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return yaml.safe_load(text)["data"]


def train(tree: Path, config: Path, out: Path) -> dict:
    """The summary of a run."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    words = [sys.executable, "-P", "-m", "marius_oac", "train", config.name, "--out", str(out)]
    subprocess.run(words, check=True, capture_output=True, cwd=config.parent, env=environment)
    return json.loads((out / "summary.json").read_text())


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % interval of their median."""
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="folder of a checkout: the one, the other")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    print(f"{machine()}, {options.rounds} rounds\n")
    print("| configuration | examples/s, the one | the other | ratio | 95 % interval | same bits |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        data = write_log(folder / "log")
        for name, settings in CONFIGS.items():
            if settings.get("task") == "ctr":
                settings = settings | {"data": data | {"train": settings["data"]["train"]}}
            config = folder / "config.yaml"
            config.write_text(yaml.safe_dump(settings))
            rates, bits = [[], []], set()
            for number in range(-1, options.rounds):  # the first compiles, and does not count
                for place in sorted((0, 1), key=lambda place: (place + number) % 2):
                    out = folder / "run"
                    summary = train(trees[place], config, out)
                    shutil.rmtree(out)
                    bits.add(tuple(sorted(value for key, value in summary.items() if key.endswith(".sha256"))))
                    if number >= 0:
                        rates[place].append(summary["training.examples_per_second"])
            ratios = [other / one for one, other in zip(*rates, strict=True)]
            low, high = interval(ratios)
            print(
                f"| {name} | {statistics.median(rates[0]):,.0f} | {statistics.median(rates[1]):,.0f} | "
                f"{statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} | {'yes' if len(bits) == 1 else 'no'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
