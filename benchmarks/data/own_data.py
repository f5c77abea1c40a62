"""Logs and graphs as a stranger might bring them: raw file, `init`, `prepare`, `train`, and what simple ways reach.

    python -m benchmarks.data.own_data

The files are those of `tests/training/own_data.py`. Logistic regression has an L2 penalty, the one of three that is
best on the test; numbers are standardised, gaps marked and filled with the median. Popularity ranks a name by how
many training edges of the relation have it at that end.
"""

import argparse
import csv
import json
import os
import shlex
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.machine import machine
from marius_oac.cli import commands as cli
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.evaluation.binary_metrics import ClickMetrics
from tests.training.own_data import OWN, Own

PENALTIES = (1e-5, 1e-4, 1e-3)


def train_own(own: Own) -> tuple[float, float]:
    """Makes a file, a config and a run in the current folder; the run's metric, and seconds of processor time."""
    own.make(Path(own.file), own.rows)
    start = time.process_time()
    split = ["--split", "parts"] if own.metric == "test.auc" else []
    commands = [["init", own.file, *split, "--out", "config.yaml"], ["train", "config.yaml", "--out", "run"]]
    for command in commands:
        if cli.main(command):
            raise SystemExit(f"{shlex.join(command)} failed")
        mark = "#   marius-oac "
        said = [line.removeprefix(mark) for line in Path("config.yaml").read_text().splitlines() if mark in line]
        if command[0] == "init" and not split and cli.main(shlex.split(said[0])):
            raise SystemExit(f"{said[0]} failed")
    taken = time.process_time() - start
    return json.loads(Path("run/summary.json").read_text())[own.metric], taken


def columns(config: Config, split: str) -> tuple[dict[str, list[str]], np.ndarray]:
    """The texts of a part's columns, and its labels."""
    data = config.data
    path = getattr(data, split)[0]
    with open(path, newline="") as file:
        rows = list(csv.reader(file, delimiter="," if path.endswith(".csv") else "\t"))
    names = list(data.columns) or rows.pop(0)
    found = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    positive = data.label.positive or ("1",)
    return found, np.array([text in positive for text in found[data.label.column]], np.float32)


def logistic_regression(config: Config) -> float:
    """Its AUC on the test."""
    (train, labels), (test, truth) = columns(config, "train"), columns(config, "test")
    numbers, ids, size = {"train": [], "test": []}, {"train": [], "test": []}, 0
    for each in config.data.numeric:
        values = {key: np.array([float(x or "nan") for x in part[each.name]])
                  for key, part in (("train", train), ("test", test))}  # fmt: skip
        known = values["train"][~np.isnan(values["train"])]
        for key, found in values.items():
            filled = np.where(np.isnan(found), np.median(known), found)
            numbers[key] += [(filled - known.mean()) / known.std(), np.isnan(found)]
    for each in config.data.categorical:
        known = {value: number for number, value in enumerate(sorted(set(train[each.name])))}
        for key, part in (("train", train), ("test", test)):
            ids[key].append([size + known.get(value, len(known)) for value in part[each.name]])
        size += len(known) + 1
    inputs = {key: (torch.tensor(np.array(numbers[key] or np.zeros((1, len(ids[key][0])))).T, dtype=torch.float32),
                    torch.tensor(ids[key]).T) for key in ids}  # fmt: skip
    return max(area(truth, fitted(inputs, size, torch.from_numpy(labels), penalty)) for penalty in PENALTIES)


def fitted(inputs: dict, size: int, labels: torch.Tensor, penalty: float) -> np.ndarray:
    """Probabilities of the test's examples."""
    weights = [torch.zeros(count, requires_grad=True) for count in (size, inputs["train"][0].shape[1], 1)]
    optimizer = torch.optim.LBFGS(weights, max_iter=200, line_search_fn="strong_wolfe")

    def logits(key: str) -> torch.Tensor:
        numbers, ids = inputs[key]
        return weights[0][ids].sum(1) + numbers @ weights[1] + weights[2]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(logits("train"), labels)
        loss = loss + penalty * (weights[0].square().sum() + weights[1].square().sum())
        loss.backward()
        return loss

    optimizer.step(closure)
    return torch.sigmoid(logits("test")).detach().numpy()


def area(labels: np.ndarray, probabilities: np.ndarray) -> float:
    with ClickMetrics() as metrics:
        metrics.add(labels, probabilities)
        return metrics.result()["auc"]


def popularity(graph: Graph) -> tuple[float, float]:
    """Filtered MRR of the test by popularity, and of answers at random."""
    train, test = graph.edges("train"), graph.edges("test")
    known = {tuple(edge) for split in ("train", "valid", "test") for edge in graph.edges(split).tolist()}
    found, random = [], []
    for edge in test.tolist():
        same = train[train[:, 1] == edge[1]] if len(edge) == 3 else train
        for end in (0, -1):
            counts = np.bincount(same[:, end], minlength=graph.num_nodes)
            others = [{0: (node, *edge[1:]), -1: (*edge[:-1], node)}[end] for node in range(graph.num_nodes)]
            counts = counts[[other == tuple(edge) or other not in known for other in others]]
            mine = np.bincount(same[:, end], minlength=graph.num_nodes)[edge[end]]
            found.append(1 / (1 + (counts > mine).sum() + ((counts == mine).sum() - 1) / 2))
            random.append((1 / np.arange(1, counts.size + 1)).mean())
    return float(np.mean(found)), float(np.mean(random))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{machine()}\n\n| file | metric | simple | asked for | found | processor time |\n|---|---|---|---|---|---|")
    for name, own in OWN.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found, seconds = train_own(own)
            config = Config.load("config.yaml")
            if own.metric == "test.auc":
                simple = f"logistic regression {logistic_regression(config):.3f}"
            else:
                popular, random = popularity(Graph.open(config.data.path))
                simple = f"random {random:.4f}, popularity {popular:.3f}"
            print(
                f"| {name} | {own.metric} | {simple} | > {own.more_than} | {found:.3f} | {seconds:.1f} s |", flush=True
            )
            os.chdir("/")


if __name__ == "__main__":
    main()
