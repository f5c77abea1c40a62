"""Evaluation by several trainers: the metrics of one, and how much of the work each has.

    python -m benchmarks.nodes.evaluation --graph FOLDER [--encoded FOLDER] [--split valid] [--width 64] [--trainers 4]

Processes of `torch.distributed` on this machine hold the same random values and evaluate together, as trainers do. Rows
come from memory, not from other nodes. Scores, examples, or nodes that are encoded by a layer, and processor seconds of
each process are compared with those of one process that evaluates alone, while as many others do so beside it: more
processes than cores take more processor time each for the same work. The examples are a generated log's, in Parquet
with row groups of 65,536. The nodes are those of `--graph`, or of `--encoded`, under two layers of GraphSAGE, which are
then ranked with 1,000 drawn candidates for 10,000 edges of the split.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.generate.log import LogSpec, write_day
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.evaluation.evaluator import Evaluator
from marius_oac.evaluation.inference import _LayerPass
from marius_oac.evaluation.link_prediction import _Ranking
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.nodes.groups.torch_group import TorchGroup
from marius_oac.nodes.sharded.evaluation import SharedEvaluation
from marius_oac.runs.session import Session
from marius_oac.tasks.ctr.predict import ClickPredictor
from marius_oac.training.local import start_task

DIMENSION, EXAMPLES = 64, 1_000_000
LOG = LogSpec(categorical=26, numeric=13, keys=100_000, skew=1.05)
Evaluate = Callable[[Sharing], dict[str, Any]]


def _ranks(folder: Path, split: Any, work: list[int]) -> Evaluate:
    graph = Graph.open(folder)
    config = Config.build({"data": {"path": str(folder)}, "model": {"decoder": "complex", "dimension": DIMENSION}}, [])
    random = np.random.default_rng(0)
    values = random.normal(size=(graph.num_nodes, DIMENSION)).astype(np.float32)
    relations = torch.from_numpy(random.normal(size=(graph.num_relations, DIMENSION)).astype(np.float32))
    real = _Ranking._count

    def count(self: Any, tile: Any, scores: Any, block: Any, progress: Any) -> None:
        work[0] += len(tile.places) * len(block)
        real(self, tile, scores, block, progress)

    _Ranking._count = count  # type: ignore[method-assign]
    scorer = LinkScorer(config.model, EntityReader.of_array(values), relations)
    return lambda among: Evaluator(config, graph).evaluate(scorer, split, True, among)


def _clicks(folder: Path, work: list[int]) -> Evaluate:
    tree = {
        "task": "ctr",
        "data": {"train": str(folder / "held_out.parquet"), "test": str(folder / "held_out.parquet"), **LOG.schema()},
        "model": {"network": "deepfm", "dimension": 16, "hidden": [64, 32]},
        "device": "cpu",
        "threads": 1,
    }
    real = ClickPredictor.predict

    def predict(self: Any, examples: Any) -> np.ndarray:
        work[0] += examples.size
        return real(self, examples)

    ClickPredictor.predict = predict  # type: ignore[method-assign]
    session = Session(start_task(CtrConfig.build(tree, [])))
    return lambda among: session.task.evaluate(session.parts, "test", True, among)


def _encoded(folder: Path, split: Any, width: int, work: list[int]) -> Evaluate:
    tree = {
        "data": {"path": str(folder)},
        "model": {"decoder": "dot", "dimension": width},
        "encoder": {"layers": [{"kind": "sage", "neighbors": 10}] * 2},
        "evaluation": {"candidates": 1000, "filtered": False, "max_edges": 10_000},
        "device": "cpu",
        "threads": 1,
    }
    real = _LayerPass._block

    def block(self: Any, begin: int, end: int) -> Any:
        work[0] += end - begin
        return real(self, begin, end)

    _LayerPass._block = block  # type: ignore[method-assign]
    session = Session(start_task(Config.build(tree, [])))
    return lambda among: session.task.evaluate(session.parts, split, False, among)


def _measure(
    rank: int, count: int, alone: bool, port: int, graphs: Sequence[str], split: str, width: int, folder: str
) -> dict[str, Any]:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    group, found = TorchGroup.from_environment(60.0), {}
    works: dict[str, list[int]] = {"ranks": [0], "encoded": [0], "clicks": [0]}
    evaluations = {
        "ranks": _ranks(Path(graphs[0]), split, works["ranks"]),
        "encoded": _encoded(Path(graphs[1]), split, width, works["encoded"]),
        "clicks": _clicks(Path(folder), works["clicks"]),
    }
    for name, evaluate in evaluations.items():
        work = works[name]
        for _turn in range(2):  # the first compiles kernels
            group.barrier()
            work[0], began = 0, time.process_time()
            metrics = evaluate(UNSHARED) if alone else SharedEvaluation(group, [True] * count).evaluate(evaluate)
            seconds = time.process_time() - began
        found[name] = {"work": work[0], "cpu": seconds, "metrics": {k: v for k, v in metrics.items() if k != "seconds"}}
    group.barrier()
    group.close()
    return found


def measured(
    count: int, alone: bool, graphs: Sequence[Path], split: str, width: int, folder: Path
) -> list[dict[str, Any]]:
    """What each of so many processes found; `alone`: each evaluates all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        about = (count, alone, port, [str(graph) for graph in graphs], split, width, str(folder))
        return [each.result() for each in [pool.submit(_measure, rank, *about) for rank in range(count)]]


def main() -> None:
    """Prints a line of JSON for each kind of evaluation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, required=True, help="a prepared graph")
    parser.add_argument("--encoded", type=Path, help="a larger graph, whose nodes are encoded")
    parser.add_argument("--split", default="valid")
    parser.add_argument("--width", type=int, default=DIMENSION, help="of the encoder's layers")
    parser.add_argument("--trainers", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_day(Path(folder) / "held_out.parquet", 0, EXAMPLES, LOG)
        graphs = (given.graph, given.encoded or given.graph)
        about = graphs, given.split, given.width, Path(folder)
        (quiet,) = measured(1, True, *about)
        beside, all_ = (measured(given.trainers, alone, *about) for alone in (True, False))
    for name, one in quiet.items():
        every = [each[name] for each in all_]
        seconds = statistics.mean(each[name]["cpu"] for each in beside)
        line = {
            "evaluation": name,
            "same_metrics": json.dumps([each["metrics"] for each in every])
            == json.dumps([one["metrics"]] * len(every)),
            "alone": {"work": one["work"], "cpu": round(one["cpu"], 2), "cpu beside others": round(seconds, 2)},
            "work": [round(each["work"] / one["work"], 4) for each in every],
            "cpu": [round(each["cpu"] / seconds, 3) for each in every],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
