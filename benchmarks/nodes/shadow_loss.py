"""ShadowSync: is a model that is synchronised in the background as good as one that waits for it?

    python -m benchmarks.nodes.shadow_loss  # some 15 minutes of one core

Zheng et al., section 4.1.1 and Table 2: EASGD, MA and BMUF in the background against the same algorithm in the
foreground every `gap` iterations, by training and evaluation loss after one pass over a generated log. Trainers go at
their own pace (mode async), as the paper's do. In the background they synchronise as often as this machine lets them:
the average sync gap is printed.

Two lines measure what there is to lose: summing gradients in every iteration (in lockstep, so rows are exact as well),
and replicas that know nothing of each other before the end. Runs of one seed have the same initial values and order
of examples; differences are taken seed by seed. But at their own pace trainers find other rows each time: the last line
of a comparison says how far apart the same run ends when it is run again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from benchmarks.nodes.trainers import Runs, Trained, spread
from marius_oac.config.ctr import CtrConfig

KINDS = ("easgd", "ma", "bmuf")
GAPS = (5, 30)
SLIGHTLY = 0.1  # an alpha, beside the default
BATCH = 512
STEPS = 500
SUMMED, ALONE = "gradients summed", "replicas alone, mean at the end"
AGAIN = "easgd, foreground, gap 5, run again"


def settings() -> dict[str, dict]:
    """`nodes.dense` by name."""
    found = {SUMMED: {"kind": "allreduce"}, ALONE: {"kind": "ma", "background": False, "sync_every": 1 << 40}}
    for kind in KINDS:
        found |= {foreground(kind, gap): {"kind": kind, "background": False, "sync_every": gap} for gap in GAPS}
        found[background(kind)] = {"kind": kind}
    for name in (foreground("ma", GAPS[0]), background("ma")):
        found[slightly(name)] = found[name] | {"alpha": SLIGHTLY}
    return found | {AGAIN: found[foreground("easgd", GAPS[0])]}


def pairs() -> list[tuple[str, str]]:
    """What is compared with what."""
    found = [(background(kind), foreground(kind, gap)) for kind in KINDS for gap in GAPS]
    mine, other = background("ma"), foreground("ma", GAPS[0])
    return [*found, (slightly(mine), slightly(other)), (ALONE, SUMMED), (AGAIN, foreground("easgd", GAPS[0]))]


def foreground(kind: str, gap: int) -> str:
    return f"{kind}, foreground, gap {gap}"


def background(kind: str) -> str:
    return f"{kind}, background"


def slightly(name: str) -> str:
    return f"{name}, alpha {SLIGHTLY:g}"


def tree_of(folder: Path) -> dict:
    """The configuration that all runs share."""
    spec = LogSpec(categorical=8, numeric=4, keys=200_000, skew=1.05, drift=0.0, new_keys=0.0)
    for day, rows in enumerate((STEPS * BATCH, 200_000)):
        write_day(folder / f"day_{day}.parquet", day, rows, spec)
    data = {"train": str(folder / "day_0.parquet"), "test": str(folder / "day_1.parquet"), "shuffle": STEPS * BATCH}
    return {
        "task": "ctr",
        "threads": 1,
        "device": "cpu",
        "data": {**data, **spec.schema()},
        "keys": {"capacity": 250_000},
        "model": {"network": "dlrm", "dimension": 10, "bottom": [32], "hidden": [64, 32]},
        "training": {"batch_size": BATCH},
    }


def train_all(trainers: int, tree: dict, kept: Runs, seeds: int) -> dict[str, list[Trained]]:
    """By setting, each seed's."""
    found: dict[str, list[Trained]] = {name: [] for name in settings()}
    for seed, (name, dense) in product(range(seeds), settings().items()):  # so all settings meet the same load
        mode = {"mode": "sync" if dense["kind"] == "allreduce" else "async"}
        config = CtrConfig.build(tree | {"seed": seed, "nodes": {"dense": dense}, "pipeline": mode})
        found[name].append(kept.train(f"{trainers} trainers, {name}, seed {seed}", config, trainers))
    return found


def losses(runs: Sequence[Trained]) -> dict[str, list[float]]:
    return {"train": [run.train_loss for run in runs], "test": [run.test["log_loss"] for run in runs]}


def relative(runs: Sequence[Trained], others: Sequence[Trained]) -> str:
    """By how much the losses are above the others', %: mean, and each seed's; of training, then of the test."""
    cells = []
    for mine, theirs in zip(losses(runs).values(), losses(others).values(), strict=True):
        each = [100 * (one / other - 1) for one, other in zip(mine, theirs, strict=True)]
        cells.append(f"{statistics.mean(each):+.3f} | {', '.join(f'{one:+.3f}' for one in each)}")
    return " | ".join(cells)


def print_losses(trainers: int, found: Mapping[str, Sequence[Trained]]) -> None:
    print("\n| trainers | setting | average sync gap | train loss | test log loss, mean | standard deviation | AUC |")
    print("|---|---|---|---|---|---|---|")
    for name, runs in found.items():
        train, test = losses(runs).values()
        gap = statistics.mean(run.dense["average_sync_gap"] for run in runs)
        auc = statistics.mean(run.test["auc"] for run in runs)
        print(
            f"| {trainers} | {name} | {gap:.1f} | {statistics.mean(train):.5f} | {statistics.mean(test):.5f} "
            f"| {spread(test):.5f} | {auc:.5f} |"
        )
    print("\n| trainers | setting | against | train loss, % above | each seed | test log loss, % above | each seed |")
    print("|---|---|---|---|---|---|---|")
    for mine, other in pairs():
        print(f"| {trainers} | {mine} | {other} | {relative(found[mine], found[other])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a file of runs; those that it has are not run again")
    options = parser.parse_args()
    print(f"{machine()}\n{STEPS} iterations a trainer, batches of {BATCH} over all trainers")
    kept = Runs(options.keep)
    with tempfile.TemporaryDirectory() as place:
        tree = tree_of(Path(place))
        for trainers in options.trainers:
            print_losses(trainers, train_all(trainers, tree, kept, options.seeds))


if __name__ == "__main__":
    main()
