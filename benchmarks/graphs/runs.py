"""What the benchmarks of whole runs share: a graph to train on, sessions of some batches."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.generate.graph import GeneratedGraph, write_graph
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.pipeline.stages import Probe
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.session import Session
from marius_oac.tasks.link_prediction.task import GraphTask

GRAPHS = {
    "fb15k-237": GeneratedGraph(num_nodes=14_541, num_edges=302_000, num_relations=237),
    "web-NotreDame": GeneratedGraph(num_nodes=325_729, num_edges=1_497_134),
}
"""What stands in for a graph that is not at hand."""


@contextmanager
def benchmark_graph(data: str | None, name: str = "fb15k-237") -> Iterator[Graph]:
    """The graph in the folder `data`/`name`; without `data` a generated one of its size, and says so."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "graph"
        if data and name == "fb15k-237":
            prepare(PrepareRequest(source=name, from_dir=Path(data) / name, out=out))
        elif data:
            # Training ranks the test edges when it ends, which here nobody asks for.
            prepare(PrepareRequest(source=str(Path(data) / name / "edges.txt.gz"), out=out, test_fraction=0.0))
        else:
            print(f"no --data and no MARIUS_OAC_DATA: a generated graph of {name}'s size")
            source = Path(folder) / "edges.npy"
            write_graph(GRAPHS[name], source)
            prepare(PrepareRequest(source=str(source), out=out))
        yield Graph.open(out)


def complex_config(graph: Graph, epochs: int) -> Config:
    """ComplEx of dimension 100 with N3, as the benchmarks of quality train it."""
    return Config.build(
        {
            "device": "cpu",
            "data": {"path": str(graph.path)},
            "model": {"decoder": "complex", "dimension": 100},
            "training": {
                "epochs": epochs,
                "batch_size": 1000,
                "negatives": {"count": 500},
                "regularization": {"kind": "n3", "weight": 0.05},
            },
            "checkpoint": {"keep": 1},
        }
    )


class TimedSession:
    """A session that runs a few batches at a time, again and again over its epochs; the first ones warm it up."""

    def __init__(self, config: Config, graph: Graph, warm_up: int = 3, probe: Probe | None = None):
        self.session, self.results = Session(GraphTask(config, graph), probe=probe), []
        self.session.report_to(self.results.append)
        self.next = 0
        self.run(warm_up)

    def run(self, batches: int) -> tuple[float, dict[str, float]]:
        """Examples per second of the next so many batches, and the busy seconds of each stage per batch."""
        self.results.clear()
        before = self.session.telemetry.total()
        began = time.perf_counter()
        self.next = self.session.pipeline.run(self.next, self.next + batches)
        seconds = time.perf_counter() - began
        after = self.session.telemetry.total()
        stages = {stage: (total - before.get(stage, 0.0)) / batches for stage, total in after.items()}
        return sum(result.examples for result in self.results) / seconds, stages


def compute_seconds(config: Config, graph: Graph, batches: int = 30, repeats: int = 5) -> float:
    """Seconds that a batch computes, alone."""
    timed = TimedSession(config.replace("pipeline.mode=sync"), graph)
    with timed.session:
        return statistics.median(timed.run(batches)[1]["compute"] for _ in range(repeats))
