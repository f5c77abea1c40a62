"""Small valid runs, graphs and logs, made once, each with the commands that read them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.tasks.link_prediction.trained import TrainedModel
from marius_oac.training.local import train
from tests.click_logs import ctr_config, small_log
from tests.disk import budget, graph_config
from tests.graphs import tiny_config, tiny_graph
from tests.run_folders import write_config

MORE = ("--set", "training.epochs=2")
SMALL = ("training.epochs=1", "evaluation.max_edges=20", "checkpoint.every_batches=10")


@dataclass(frozen=True)
class Specimen:
    """What is changed, below a folder, and who reads it.

    Attributes:
        make: fills the folder, which then moves: paths in it are written by `tests.chaos.resealed` for each case.
        commands: `HERE` stands for the folder, `OUT` for a new path in a folder of its own.
        left_alone: files that are not changed, by the end of their names.
    """

    make: Callable[[Path], None]
    commands: tuple[tuple[str, ...], ...]
    left_alone: tuple[str, ...] = (".lock",)


def _graph(here: Path) -> None:
    tiny_graph(here / "made").path.rename(here / "graph")
    write_config(here / "config.yaml", tiny_config(Graph.open(here / "graph"), *SMALL))


def _graph_run(here: Path, *overrides: str, make_config=tiny_config) -> None:
    tiny_graph(here / "made").path.rename(here / "graph")
    train(make_config(Graph.open(here / "graph"), *SMALL, *overrides), here / "run")


def _encoded(here: Path) -> None:
    tiny_graph(here / "made").path.rename(here / "graph")
    graph = Graph.open(here / "graph")
    names = graph.node_names(range(graph.num_nodes))
    values = np.random.default_rng(0).normal(size=(len(names), 3)).astype(np.float32)
    pq.write_table(pa.table({"name": names, "features": values.tolist()}), here / "features.parquet")
    encoder = ("encoder.layers=[{kind: sage, neighbors: 3}]", f"encoder.features={here / 'features.parquet'}")
    config = tiny_config(graph, *SMALL, *encoder)
    train(config, here / "run")
    TrainedModel.open(here / "run").entities  # noqa: B018 - lays the encoded nodes into the run
    write_config(here / "config.yaml", config)


def _classes(here: Path) -> None:
    tiny_graph(here / "made").path.rename(here / "graph")
    graph = Graph.open(here / "graph")
    names, splits = graph.node_names(range(100)), ["train"] * 60 + ["valid"] * 20 + ["test"] * 20
    rows = [f"{name}\tclass {n % 3}\t{split}\n" for n, (name, split) in enumerate(zip(names, splits, strict=True))]
    (here / "labels.tsv").write_text("name\tlabel\tsplit\n" + "".join(rows))
    tree = {"task": "node_classification", "device": "cpu", "threads": 1,
            "data": {"path": str(here / "graph"), "labels": str(here / "labels.tsv")}, "model": {"dimension": 8},
            "encoder": {"layers": [{"kind": "sage", "neighbors": 3}], "embeddings": 4},
            "training": {"batch_size": 20, "epochs": 1}}  # fmt: skip
    train(Config.build(tree), here / "run")
    write_config(here / "config.yaml", Config.build(tree))


def _clicks(here: Path) -> None:
    files = [small_log(here / f"day_{day}.parquet", rows=60, seed=day, new=5 * day) for day in range(2)]
    keys = ("training.epochs=1", "keys.admit_after=2", "keys.drop_after=3", "keys.capacity=500", "data.shuffle=40")
    train(ctr_config(files[:1], *keys, test=files[1]), here / "run")


def _clicks_on_disk(here: Path) -> None:
    file = small_log(here / "day_0.parquet", rows=60)
    paged = (
        "training.epochs=1",
        "keys.capacity=500",
        "training.batch_size=4",
        "model.dimension=256",
        "storage.page=4096",
        budget(30),
    )
    train(ctr_config(file, *paged, network="fm"), here / "run")


def _logs(here: Path) -> None:
    small_log(here / "log.parquet", rows=60)
    table = pq.read_table(here / "log.parquet")
    for name in ("tags", "history"):
        joined = pa.array(["|".join(map(str, each)) for each in table.column(name).to_pylist()])
        table = table.set_column(table.column_names.index(name), name, joined)
    pv.write_csv(table, here / "log.csv")
    for suffix in ("csv", "parquet"):
        write_config(
            here / f"{suffix}.yaml",
            ctr_config(here / f"log.{suffix}", "training.epochs=1", "keys.capacity=500", network="lr"),
        )


def _edges(here: Path) -> None:
    edges = np.random.default_rng(0).integers(0, 30, (80, 3))
    np.save(here / "edges.npy", edges)
    names = [[f"{kind}{number}" for number in column] for kind, column in zip("nrn", edges.T, strict=True)]
    table = pa.table(dict(zip(("head", "relation", "tail"), names, strict=True)))
    pq.write_table(table, here / "edges.parquet")
    for suffix, mark in (("tsv", "\t"), ("csv", ",")):
        pv.write_csv(
            table, here / f"edges.{suffix}", pv.WriteOptions(include_header=False, delimiter=mark, quoting_style="none")
        )


def _nodes(here: Path) -> None:
    tiny_graph(here / "made").path.rename(here / "graph")
    config = write_config(here / "config.yaml", tiny_config(Graph.open(here / "graph"), *SMALL))
    command = [
        sys.executable,
        "-m",
        "marius_oac",
        "train",
        str(config),
        "--out",
        str(here / "run"),
        "--local-nodes",
        "2",
    ]
    subprocess.run(command, check=True, capture_output=True)


_READ = (("eval", "HERE/run"), ("export", "HERE/run", "--out", "OUT"), ("compare", "HERE/run", "HERE/run"))
_GRAPH = (*_READ, ("predict", "HERE/run", "--head", "1", "--relation", "0", "--filtered"),
          ("resume", "HERE/run", *MORE))  # fmt: skip
_TRAIN = (("train", "HERE/config.yaml", "--out", "OUT"),)
_CLICKS = (("eval", "HERE/run", "--data", "HERE/day_0.parquet"), *_READ[1:], ("resume", "HERE/run", *MORE),
           ("predict", "HERE/run", "--data", "HERE/day_0.parquet", "--out", "OUT.parquet"))  # fmt: skip

SPECIMENS = {
    "graph": Specimen(_graph, _TRAIN),
    "run": Specimen(_graph_run, _GRAPH),
    "arrival": Specimen(lambda here: _graph_run(here, "pipeline.order=arrival"), (_GRAPH[0], _GRAPH[-1])),
    "buckets": Specimen(
        lambda here: _graph_run(here, "training.ordering={kind: beta, partitions: 8, buffer: 3}"), _GRAPH[-1:]
    ),
    "disk": Specimen(
        lambda here: _graph_run(here, budget(60), "checkpoint.every_batches=60", make_config=graph_config), _GRAPH
    ),
    "encoder": Specimen(_encoded, (*_GRAPH, *_TRAIN)),
    "classes": Specimen(
        _classes, (*_READ, ("predict", "HERE/run", "--node", "1"), ("resume", "HERE/run", *MORE), *_TRAIN)
    ),
    "clicks": Specimen(_clicks, _CLICKS),
    "clicks on disk": Specimen(_clicks_on_disk, _CLICKS),
    "logs": Specimen(
        _logs,
        (("train", "HERE/csv.yaml", "--out", "OUT"), ("train", "HERE/parquet.yaml", "--out", "OUT")),
    ),
    "edges": Specimen(
        _edges, tuple(("prepare", f"HERE/edges.{kind}", "--out", "OUT") for kind in ("npy", "parquet", "tsv", "csv"))
    ),
    "nodes": Specimen(_nodes, _READ),
}
