"""What a run holds: the device cache by batches in flight, and peak memory against the plan that it prints.

    python -m benchmarks.graphs.bounds  # a generated graph of a million nodes
    python -m benchmarks.graphs.bounds --nodes 4000000

Every twentieth write and every twentieth upload stalls until nothing else can move. "Oldest" is the greatest age of a
cached row, in batches. Memory is that of a run alone in its process; "held" is the most that was resident.
"""

import argparse
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.pipeline import runner
from marius_oac.pipeline.validation import Cache
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.session import Session
from marius_oac.tasks.link_prediction.memory import plan_memory
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.training.local import train


def make_config(path: str, *overrides: str) -> Config:
    tree = {
        "device": "cpu",
        "data": {"path": path},
        "training": {"epochs": 1, "batch_size": 1000},
        "evaluation": {"every": 0},
        "checkpoint": {"keep": 1},
    }
    return Config.build(tree, overrides)


class NotingCache(Cache):
    """Notes the greatest age of a row after each batch."""

    oldest_age = 0

    def add(self, batch) -> None:
        super().add(batch)
        NotingCache.oldest_age = max(NotingCache.oldest_age, batch.timestamp - self.oldest)


def cache_bounds(graph: Graph, order: str, in_flight: int, batches: int) -> tuple[int, int]:
    """The greatest age in batches and the most rows of the device cache, with writers that stall."""
    never, rows = threading.Event(), []

    def stall(stage: str, batch_index: int) -> None:
        if (stage, batch_index % 20) in (("write", 10), ("upload", 15)):
            never.wait(0.3)

    runner.Cache, NotingCache.oldest_age = NotingCache, 0
    try:
        config = make_config(
            str(graph.path), f"pipeline.order={order}", f"pipeline.in_flight={in_flight}",
            *(f"pipeline.workers.{stage}=2" for stage in ("plan", "read", "upload", "download", "write")),
        )  # fmt: skip
        with Session(GraphTask(config, graph), probe=stall) as session:
            session.report_to(lambda result: rows.append(result.cached_rows))
            session.pipeline.run(0, batches)
        return NotingCache.oldest_age, max(rows)
    finally:
        runner.Cache = Cache


def make_graph(folder: Path, nodes: int) -> Path:
    source, out = folder / "edges.npy", folder / "graph"
    write_graph(GeneratedGraph(num_nodes=nodes, num_edges=nodes, num_relations=10), source)
    prepare(PrepareRequest(source=str(source), out=out, valid_fraction=0.0, test_fraction=0.0))
    return out


def peak_memory(path: str, overrides: list[str]) -> tuple[int, int]:
    """Bytes planned and held by a run in this process, which has done nothing else."""
    config = make_config(path, *overrides)
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_memory(config, Graph.open(path), Path(folder)).total("host")
        return planned, train(config, Path(folder) / "run").summary["memory.peak_rss_bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=80)
    args = parser.parse_args()
    print(machine(), flush=True)
    # A process of its own for each: a child begins with the peak of its parent, which must stay small till the end.
    alone = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)
    with tempfile.TemporaryDirectory() as folder, alone:
        path = str(alone.submit(make_graph, Path(folder), args.nodes).result())
        report_memory(path, alone)
        report_cache(Graph.open(path), args.batches)


def report_cache(graph: Graph, batches: int) -> None:
    print("\n| in flight | S | order | oldest | bound 2S + 1 | peak rows |\n|---|---|---|---|---|---|")
    for order in ("plan", "arrival"):
        for in_flight in (2, 4, 8, 16):
            age, rows = cache_bounds(graph, order, in_flight, batches)
            print(f"| {in_flight} | {in_flight - 1} | {order} | {age} | {2 * in_flight - 1} | {rows:,} |")


def report_memory(path: str, alone: ProcessPoolExecutor) -> None:
    print("\n| run | planned | held at most | held / planned |\n|---|---|---|---|")
    runs = {
        "dimension 100, Adagrad": [],
        "dimension 200, Adam": ["model.dimension=200", "training.optimizer.kind=adam"],
        "dimension 100, bfloat16": ["storage.dtype=bfloat16"],
        "dimension 100, 32 in flight": ["pipeline.in_flight=32"],
    }
    for name, overrides in runs.items():
        planned, held = alone.submit(peak_memory, path, overrides).result()
        print(f"| {name} | {planned >> 20:,} MiB | {held >> 20:,} MiB | {held / planned:.2f} |", flush=True)


if __name__ == "__main__":
    main()
