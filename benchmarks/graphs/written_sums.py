"""Processor time of a step on one core, of two checkouts in turn, for each kind of sum that a step has.

    python -m benchmarks.graphs.written_sums ../before .

Batches are those of `step_speed`, setting a, but of dimension 400. Each checkout's process computes 5 of them in its
turn; which goes first changes from round to round. Prints medians, and the median of the rounds' ratios.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.graphs.step_speed import ENTITIES, RELATIONS, SETTINGS, draw, planned
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.models.link_prediction.step import LinkPredictionStep, entity_width, relation_width

DIMENSION, STEPS = 400, 5
N3 = {"regularization": {"kind": "n3", "weight": 0.01}}
CASES = {
    "DistMult, softmax": ({"decoder": "distmult"}, {}),
    "ComplEx, logistic": ({"decoder": "complex"}, {"loss": {"kind": "logistic"}}),
    "ComplEx, softmax, N3, row-wise": ({"decoder": "complex"}, N3 | {"optimizer": {"kind": "rowwise_adagrad"}}),
    "TransE L1, margin": ({"decoder": "transe", "norm": 1}, {"loss": {"kind": "margin"}}),
    "TransE L2, softmax": ({"decoder": "transe", "norm": 2}, {}),
    "RotatE, self-adversarial": ({"decoder": "rotate"}, {"loss": {"kind": "self_adversarial"}}),
}


def steps(case: str):
    """Yields milliseconds of this thread per batch, for ever."""
    model, training = CASES[case]
    size, chunks, count = SETTINGS["a"]
    batches = {"batch_size": size, "negatives": {"count": count, "chunks": chunks}}
    about = {"model": model | {"dimension": DIMENSION}, "training": training | batches, "device": "cpu"}
    config = Config.build({"data": {"path": "none"}} | about)
    generator = np.random.default_rng(0)
    rows, batch = planned(draw(generator, size, chunks, count))
    relations = generator.normal(0, 0.1, (RELATIONS, relation_width(config))).astype(np.float32)
    step = LinkPredictionStep(config, RELATIONS, torch.device("cpu"), 1, relations)
    table = generator.normal(0, 0.1, (ENTITIES, sum(entity_width(config)))).astype(np.float32)
    gathered = np.abs(table[rows])
    while True:
        before = time.thread_time()
        for _ in range(STEPS):
            step.compute([gathered.copy()], batch, 0)
        yield (time.thread_time() - before) * 1000 / STEPS


def answer() -> None:
    """As one checkout's process: a line with a case, and one with its milliseconds."""
    made = {}
    for line in sys.stdin:
        case = line.strip()
        made[case] = made.get(case) or steps(case)
        print(json.dumps(next(made[case])), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="folders of two checkouts")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not options.trees:
        answer()
        return
    processes = [
        subprocess.Popen([sys.executable, "-P", __file__], stdin=-1, stdout=-1, text=True,
                         env=os.environ | {"PYTHONPATH": str(tree.resolve())})
        for tree in options.trees
    ]  # fmt: skip

    def ask(process: subprocess.Popen, case: str) -> float:
        process.stdin.write(f"{case}\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    print(f"{machine()}, {options.rounds} rounds\n\n| step | one, ms | other, ms | other / one |\n|---|---|---|---|")
    for case in CASES:
        for process in processes:
            ask(process, case)  # compiles
        found = [[], []]
        for turn in itertools.islice(itertools.cycle((0, 1)), options.rounds):
            for each in (turn, 1 - turn):
                found[each].append(ask(processes[each], case))
        one, other = map(statistics.median, found)
        ratio = statistics.median(b / a for a, b in zip(*found, strict=True))
        print(f"| {case} | {one:.2f} | {other:.2f} | {ratio:.3f} |", flush=True)
    for process in processes:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
