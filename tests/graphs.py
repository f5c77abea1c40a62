"""Small graphs whose batches all conflict, and short runs on them."""

import os
import random
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.generate.graph import GeneratedGraph, write_graph
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.pipeline.stages import BatchResult
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.session import Session
from marius_oac.tasks.link_prediction.task import GraphTask

NODES, RELATIONS, EDGES = 200, 4, 1000


def tiny_graph(folder: Path, relations: int = RELATIONS) -> Graph:
    """200 nodes, 1000 edges, split 0.8 / 0.1 / 0.1: two batches of `tiny_config` share half their rows."""
    spec = GeneratedGraph(num_nodes=NODES, num_edges=EDGES, num_relations=relations, num_clusters=8, seed=1)
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "edges.npy"
    write_graph(spec, source)
    read = ReadOptions(relations=relations > 0)
    fractions = {"valid_fraction": 0.1, "test_fraction": 0.1}
    prepare(PrepareRequest(source=str(source), out=folder / "graph", read=read, **fractions))
    return Graph.open(folder / "graph")


def real_graph(name: str, folder: Path) -> Graph:
    """A known data set, prepared from the files under MARIUS_OAC_DATA; skips the test where they are not."""
    data = os.environ.get("MARIUS_OAC_DATA")
    if not data or not (Path(data) / name).is_dir():
        pytest.skip(f"set MARIUS_OAC_DATA to a folder with {name}/ to run this")
    prepare(PrepareRequest(source=name, from_dir=Path(data) / name, out=folder / name))
    return Graph.open(folder / name)


def tiny_config(graph: Graph, *overrides: str) -> Config:
    """Batches of 32 edges with 2 x 16 negatives; values and steps large enough for staleness to change bits."""
    tree = {
        "device": "cpu",
        "threads": 1,
        "data": {"path": str(graph.path)},
        "model": {"dimension": 8, "init_scale": 0.3},
        "training": {"batch_size": 32, "epochs": 2, "negatives": {"count": 8, "chunks": 2}},
    }
    return Config.build(tree, overrides)


def workers(count: int) -> list[str]:
    """Overrides for `count` threads in each stage that may have several."""
    return [f"pipeline.workers.{stage}={count}" for stage in ("plan", "read", "upload", "download", "write")]


def jitter(seed: int):
    """A probe that holds each stage of each batch for a random while (a wait on an event that nobody sets)."""
    never = threading.Event()

    def probe(stage: str, batch_index: int) -> None:
        delay = random.Random(f"{seed}/{stage}/{batch_index}").choice((0, 0, 0, 0.0004, 0.0015))
        if delay:
            never.wait(delay)

    return probe


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: `bits` are the fingerprints of all tables and of the dense parameters."""

    bits: tuple[str, ...]
    results: tuple[BatchResult, ...]

    @property
    def order(self) -> np.ndarray:
        return np.array([result.batch_index for result in self.results], np.int64)

    @property
    def lost(self) -> int:
        return sum(result.lost for result in self.results)

    @property
    def replaced(self) -> int:
        return sum(result.replaced for result in self.results)


def run_batches(config: Config, graph: Graph, batches: int, probe=None) -> Outcome:
    """Trains the first `batches` batches, with no run folder, evaluation or checkpoint around them."""
    results = []
    with Session(GraphTask(config, graph), probe=probe) as session:
        session.report_to(results.append)
        assert session.pipeline.run(0, batches) == batches
        bits = tuple(store.fingerprint() for store in session.stores) + (session.dense_fingerprint(),)
    results.sort(key=lambda result: result.timestamp)
    assert [result.timestamp for result in results] == list(range(batches))
    return Outcome(bits, tuple(results))


def copy_of_graph(graph, folder):
    """Its files, without what other tests have made follow from them."""
    return shutil.copytree(graph.path, folder, ignore=shutil.ignore_patterns("neighbors-*", "features-*"))
