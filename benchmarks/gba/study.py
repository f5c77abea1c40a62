"""GBA and the other modes: what switching costs in AUC, what slow workers cost in speed, on a virtual clock.

    python -m benchmarks.gba.study switch                   # Figure 6, Tables 6.1 to 6.8 of Su et al.
    python -m benchmarks.gba.study switch --frappe DIR      # on Frappe: train.csv.gz, valid.csv.gz, test.csv.gz
    python -m benchmarks.gba.study speed                    # Table 5.2
    python -m benchmarks.gba.study auto                     # sync, gba and auto over a day in four phases
    python -m benchmarks.gba.study load --base 3 --after 2  # Table 5.3
    python -m benchmarks.gba.study batches --base 3 --after 2 # Figures 7 and 8
    python -m benchmarks.gba.study switch --seeds 1 --size 16384 --base 2 --after 2  # a quick look

Time is virtual: a worker takes local batch / 10,000 seconds for a batch, with 10 % jitter, longer where the load
profile says so; all else takes none. Gradients are real: a DeepFM's of dimension 8 at the parameters that the worker
was given, AdaGrad for rows, Adam for the network. Modes, dealer and aggregators are the package's. Workers and batches
have the proportions of the paper's Table 5.1, the learning rates are the same for all modes: those with which sync is
best on a coarse grid. Unless said, a quarter of the workers is 4 times slower. One core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks import plots
from benchmarks.gba.auto import auto_table, quality, quality_table
from benchmarks.gba.runs import MODES, Recipe
from benchmarks.gba.switch import switch_tables, switching
from benchmarks.gba.tables import batch_tables, batching, load_table, loading, speed_table
from benchmarks.machine import machine

GENERATED = {"size": 32_768, "global_batch": 1024, "rates": (0.1, 0.003)}
FRAPPE = {"size": 25_600, "global_batch": 1024, "rates": (0.2, 0.01)}
BATCHES = 3_000  # of a run without a model


def recipe(options: argparse.Namespace, seed: int) -> Recipe:
    preset = FRAPPE if options.frappe else GENERATED
    size, total = options.size or preset["size"], options.global_batch or preset["global_batch"]
    days = options.warm + options.base, options.after
    return Recipe(options.frappe, *days, size, total, preset["rates"], options.rows_over, seed, options.warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=("switch", "speed", "auto", "load", "batches"))
    parser.add_argument("--frappe", type=Path, metavar="DIR", help="Frappe's three files in place of a generated log")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="of one thread each, for seeds and modes")
    parser.add_argument("--base", type=int, default=5, help="days of the base model")
    parser.add_argument("--warm", type=int, default=0, help="days that sync trains before those of the base model")
    parser.add_argument("--after", type=int, default=5, help="days after the switch")
    parser.add_argument("--size", type=int, default=0, help="examples of a day, whole global batches")
    parser.add_argument("--global-batch", type=int, default=0, help="of sync and gba")
    parser.add_argument("--rows-over", choices=("holders", "gradients"), default="holders", help="see `Mode.rows_over`")
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    if options.experiment == "batches":
        plots.check(parser)
    print(f"{machine()}; virtual time, real gradients\n", flush=True)
    if options.experiment == "speed":
        speed_table(BATCHES, options.seeds)
        return
    if options.experiment == "auto":
        auto_table(50, 100, options.seeds)
    recipes = [recipe(options, seed) for seed in range(options.seeds)]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes, which are not there yet
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawned, torch.set_num_threads, (1,)) as pool:
        if options.experiment == "switch":
            jobs = [(each, kind) for kind in reversed(MODES) for each in recipes]  # async takes longest
            found = dict(zip(jobs, pool.map(switching, jobs), strict=True))
            switch_tables(recipes[0], [{kind: found[each, kind] for kind in MODES} for each in recipes])
        elif options.experiment == "auto":
            jobs = [(each, mode) for each in recipes for mode in ("sync", "gba", "auto")]
            quality_table(recipes, dict(zip(jobs, pool.map(quality, jobs), strict=True)))
        elif options.experiment == "load":
            load_table(recipes[0], list(pool.map(loading, recipes)))
        else:
            batch_tables(recipes[0], list(pool.map(batching, recipes)), options.figures)


if __name__ == "__main__":
    main()
