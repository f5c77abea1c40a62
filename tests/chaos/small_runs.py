"""The runs, graphs and logs of this folder's sweeps: each trains in a tenth of a second, and has several checkpoints.

HERE/edges.npy, HERE/graph, HERE/day_*.parquet     what is read
HERE/memory.yaml, HERE/disk.yaml, HERE/clicks.yaml  rows in memory; on disk in a folder of their own; keys, on disk
HERE/held                                           where all is written: held/run, held/rows
"""

import json
from pathlib import Path

from marius_oac.data.graphs.graph import Graph
from tests.chaos.children import call
from tests.click_logs import ctr_config, small_log
from tests.disk import budget, graph_config
from tests.graphs import tiny_config, tiny_graph
from tests.run_folders import write_config

FEW = ("training.epochs=1", "evaluation.max_edges=20", "checkpoint.keep=2")
TASKS = ("memory", "disk", "clicks")


def make_all(here: Path) -> None:
    """All that is read."""
    (here / "held").mkdir(parents=True)
    graph = tiny_graph(here / "made")
    graph.path.rename(here / "graph")
    (here / "made" / "edges.npy").rename(here / "edges.npy")
    graph = Graph.open(here / "graph")
    write_config(here / "memory.yaml", tiny_config(graph, *FEW, "checkpoint.every_batches=9"))
    rows = (budget(60), "storage.io=buffered", f"storage.path={json.dumps(str(here / 'held' / 'rows'))}")
    disk = graph_config(graph, *FEW, *rows, "training.batch_size=16", "checkpoint.every_batches=20")
    write_config(here / "disk.yaml", disk)
    log = small_log(here / "day_0.parquet", rows=60)
    clicks = ("training.epochs=1", "training.batch_size=4", "model.dimension=256", "storage.page=4096", budget(30),
              "keys.capacity=500", "keys.admit_after=2", "storage.io=buffered", "checkpoint.every_batches=6",
              "checkpoint.keep=2")  # fmt: skip
    write_config(
        here / "clicks.yaml",
        ctr_config(log, *clicks, network="fm", test=small_log(here / "day_1.parquet", rows=30, seed=1)),
    )


def must(*argv: object) -> list[str]:
    """What a command says on standard output; raises RuntimeError unless it does what it is asked for."""
    said = call(*argv)
    if said.code:
        raise RuntimeError(str(said))
    return list(said.out)
