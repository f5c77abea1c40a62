"""Networks of clicks and graph neural networks, in examples per second."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.clicks.step import BATCH, SETTINGS, OurStep, Race, Torch
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.gpu.graphs import generated_graph
from benchmarks.gpu.measured import measured_task
from benchmarks.gpu.part import Part, Table
from benchmarks.gpu.place import Place
from benchmarks.turns import Contestant
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask
from tests.graphs import workers

SECONDS = 440
RUNS = {"mode": "mode", "workers": "workers a stage", "in_flight": "in flight", "examples_per_second": "examples/s",
        "busy": "compute stream busy", "binds": "what binds", "stages": "ms a batch"}  # fmt: skip
TABLES = [
    Table("click step", "A step of a click network, its rows on the device",
          f"Batches of {BATCH:,}, dimension 16, the settings of `benchmarks/clicks/step.py`. `dense`: the network "
          "alone, with Adam, on given inputs. `plain`: nn.EmbeddingBag (sparse) of a million keys with "
          "torch.optim.Adagrad, all on the GPU. `ours`: `CtrStep` on rows already gathered.",
          {"setting": "setting", "who": "who", "milliseconds": "ms", "examples_per_second": "examples/s"}),
    Table("clicks", "Clicks, end to end from Parquet",
          f"Training on a generated log of 26 ids and 13 numbers, with batches of {BATCH:,} and dimension 16. The "
          "time includes files, keys, rows and the network.",
          {"network": "network", **RUNS}),
    Table("encoders", "Graph neural networks",
          "Link prediction on generated graphs, dimension 50. One layer: GraphSAGE of ten neighbours under "
          "DistMult, 14,541 nodes, 237 relations, batches of 1,000 with 500 negatives. Two layers: ten neighbours "
          "each under Dot, 325,729 nodes, batches of 10,000 with 200 negatives.",
          {"encoder": "encoder", **RUNS}),
]  # fmt: skip
CHOSEN = (("oac", 4, 16), ("oac", 1, 4), ("sync", 1, 1))
"""Mode, workers of each stage, batches in flight."""
NETWORKS = {
    "DLRM": SETTINGS["dlrm"][2],
    "DeepFM": SETTINGS["deepfm"][2],
    "DCNv2": {"network": "dcnv2", "hidden": [400, 400, 400]},
}
GRAPHS = {
    "one layer": ((14_541, 302_000, 237), "distmult", [{"kind": "sage"}], 1_000, 500),
    "two layers": ((325_729, 1_497_134, 0), "dot", [{"kind": "sage"}, {"kind": "sage"}], 10_000, 200),
}
"""Nodes, edges and relations; decoder; layers; batch and negatives."""


def run(part: Part) -> None:
    for setting in part.place.pick(("dlrm", "deepfm"), ("deepfm",)):
        for who in ("ours", "plain", "dense"):
            where = {"setting": setting, "who": who}
            part.measure("click step", where, lambda w=where: _step(part.place, w["setting"], w["who"]))
    with tempfile.TemporaryDirectory() as folder:
        _clicks(part, Path(folder))
        for name in part.place.pick(tuple(GRAPHS), tuple(GRAPHS)[:1]):
            _encoders(part, name, Path(folder))


def _step(place: Place, setting: str, who: str) -> dict[str, float]:
    race = Race(setting, 1)
    contestant: Contestant = (
        OurStep(race, place.device, tensors=True) if who == "ours" else Torch(race, who == "plain", place.device)
    )
    try:
        seconds = place.times(lambda: contestant.run(1))["median"]
    finally:
        contestant.close()
    return {"milliseconds": 1e3 * seconds, "examples_per_second": BATCH / seconds}


def _settings(mode: str, count: int, in_flight: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a row says of the pipeline, and the overrides."""
    overrides = (f"pipeline.mode={mode}", f"pipeline.in_flight={in_flight}", *workers(count))
    return {"mode": mode, "workers": count, "in_flight": in_flight}, overrides


def _clicks(part: Part, folder: Path) -> None:
    place, path = part.place, folder / "day.parquet"
    keys, rows, size = place.pick((5_600_000, 400_000, BATCH), (5_000, 4_000, 200))
    spec = LogSpec(categorical=26, numeric=13, keys=keys, skew=1.05)
    written = functools.cache(lambda: write_day(path, 0, rows, spec))
    for name, model in list(NETWORKS.items())[: place.pick(3, 1)]:
        config = CtrConfig.build(
            {
                "task": "ctr",
                "device": str(place.device),
                "data": {"train": str(path), **spec.schema()},
                "model": {**model, "dimension": 16},
                "training": {"batch_size": size, "epochs": 1000},
                "keys": {"capacity": 2 * keys},
            }
        )
        for chosen in CHOSEN[: place.pick(3, 1)]:
            where, more = _settings(*chosen)

            def measure(config: CtrConfig = config, more: tuple[str, ...] = more) -> dict[str, Any]:
                written()
                return measured_task(place, start_ctr_task(config.replace(*more))[0], place.pick(12.0, 0.1))

            part.measure("clicks", {"network": name, **where}, measure, needs=place.pick(25, 0))


def _encoders(part: Part, name: str, folder: Path) -> None:
    place = part.place
    sizes, decoder, layers, batch, negatives = GRAPHS[name]
    if place.small:
        sizes, batch, negatives = (500, 4_000, 5), 100, 20

    def measure(more: tuple[str, ...]) -> dict[str, Any]:
        graph = generated_graph(folder, *sizes)  # the first one prepares it
        tree = {
            "device": str(place.device),
            "data": {"path": str(graph.path)},
            "model": {"decoder": decoder, "dimension": 50, "init_scale": 0.1},
            "encoder": {"layers": layers},
            "training": {"batch_size": batch, "negatives": {"count": negatives}, "epochs": 1000},
        }
        return measured_task(place, GraphTask(Config.build(tree, more), graph), place.pick(12.0, 0.1))

    for chosen in CHOSEN[: place.pick(3, 1)]:
        where, more = _settings(*chosen)
        part.measure("encoders", {"encoder": name, **where}, lambda more=more: measure(more), needs=place.pick(40, 0))
