"""Quality of whole runs, on the GPU against the CPU."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.graphs import generated_graph
from benchmarks.gpu.part import Missing, Part, Table
from marius_oac.config.base import BaseConfig
from marius_oac.config.link_prediction import Config
from marius_oac.data.splits import SPLITS
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.session import Session
from marius_oac.training.local import start_task, train
from tests.click_logs import generated_days

SECONDS = 470
TABLES = [
    Table("quality", "Quality",
          "The configurations of `examples/` are trained with one seed each and evaluated on the test set: "
          "filtered MRR and Hits@10 for graphs, AUC and log loss for clicks. The last column gives the figures of "
          "[the CPU](../README.md), per seed or as their mean.",
          {"data": "data", "device": "device", "mrr": "MRR", "hits": "Hits@10", "auc": "AUC", "log_loss": "log loss",
           "seconds": "s of training", "examples_per_second": "examples/s", "peak": "GiB of the GPU",
           "known": "CPU, from the benchmarks' page"}),
]  # fmt: skip
EXAMPLES = Path(__file__).parents[2] / "examples"
METRICS = {"mrr": "test.filtered.mrr", "hits": "test.filtered.hits@10", "auc": "test.auc", "log_loss": "test.log_loss",
           "seconds": "training.seconds", "examples_per_second": "training.examples_per_second"}  # fmt: skip


@dataclass(frozen=True)
class Set:
    """A data set, the example that trains on it, and what the benchmarks' page says of it."""

    example: str
    known: str
    open: Callable[[Part, BaseConfig, Path], BaseConfig]
    """The example with its data, which lies in the folder or comes there."""
    files: tuple[str, ...] = ()
    """That must be in the folder of data sets."""


def _embedded(part: Part, config: BaseConfig, folder: Path) -> BaseConfig:
    return config


def _graph(part: Part, config: BaseConfig, folder: Path) -> BaseConfig:
    out = folder / "fb15k-237"
    if part.place.small:
        return config.replace(f"data.path={generated_graph(folder, 500, 4_000, 5).path}")
    if not out.exists():
        prepare(PrepareRequest(source="fb15k-237", from_dir=part.data / "fb15k-237", out=out, unseen="keep"))
    return config.replace(f"data.path={out}")


def _clicks(part: Part, config: BaseConfig, folder: Path) -> BaseConfig:
    if part.place.small:
        return Config.build(generated_days(folder, 4_000)).replace(part.place.override)
    return config.replace(*(f"data.{split}={part.data / 'frappe' / split}.csv.gz" for split in SPLITS))


def files(pattern: str) -> tuple[str, ...]:
    """Of a data set, one for each split."""
    return tuple(pattern.format(split) for split in SPLITS)


SETS = {
    "CoDEx-S": Set("codex-s.yaml", "0.4601 / 0.6417", _embedded),
    "FB15k-237": Set("fb15k-237.yaml", "0.3428 / 0.5292", _graph, files("fb15k-237/{}.txt.gz")),
    "Frappe": Set("frappe_deepfm.yaml", "0.9831, 0.9826, 0.9819", _clicks, files("frappe/{}.csv.gz")),
}
SMALL = ("training.epochs=1",)
SMALL_GRAPH = (
    "model.dimension=16",
    "training.batch_size=2000",
    "training.negatives.count=50",
    "evaluation.max_edges=200",
)


def run(part: Part) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in SETS:
            _on(part, name, str(part.place.device), Path(folder))
        if part.place.on_gpu:
            _on(part, "CoDEx-S", "cpu", Path(folder))


def _on(part: Part, name: str, device: str, folder: Path) -> None:
    """Trains on a data set, if it is at hand and there is time."""

    def trained() -> Mapping[str, Any]:
        known = SETS[name]
        if not part.place.small and (absent := _absent(part.data, known.files)):
            raise Missing(f"not here: {', '.join(absent)} (in MARIUS_OAC_DATA, or --data)")
        config = known.open(part, Config.load(EXAMPLES / known.example), folder).replace(f"device={device}")
        if part.place.small:
            config = config.replace(*SMALL, *(SMALL_GRAPH if config.task == "graph" else ()))
        needs = 1.2 * _projected(part, config) + part.place.pick(15, 0)
        if part.left() < needs:
            raise Missing(f"out of time: {part.left():.0f} s were left, {needs:.0f} needed")
        return _trained(part, config, known.known, folder / f"run-{name}-{device}")

    part.measure("quality", {"data": name, "device": device}, trained)


def _absent(data: Path | None, files: tuple[str, ...]) -> list[str]:
    return [file for file in files if data is None or not (data / file).exists()]


def _projected(part: Part, config: BaseConfig) -> float:
    """Seconds of training, by its first batches."""
    task = start_task(config, quiet=True)
    with Session(task) as session:
        done = session.pipeline.run(0, min(10, task.schedule.last))
        began, more = time.perf_counter(), min(part.place.pick(100, 5), task.schedule.last - done)
        session.pipeline.run(done, done + more)
        return (time.perf_counter() - began) / max(1, more) * task.schedule.last


def _trained(part: Part, config: BaseConfig, known: str, path: Path) -> Mapping[str, Any]:
    part.place.forget_peak()
    summary = train(config, path).summary
    found = {name: summary.get(key) for name, key in METRICS.items()}
    bits = {key: value for key, value in summary.items() if key.endswith("sha256")}
    return found | {"peak": part.place.peak_gibibytes(), "known": known, "epochs": summary["training.epochs"], **bits}
