"""Uses of a finished run of any task: evaluate it, export it, compare it with another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs.graph import open_or_prepare
from marius_oac.errors import InputError
from marius_oac.evaluation.metrics import Metrics
from marius_oac.runs.compare import Comparison, compare
from marius_oac.runs.export import Names, export
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.tasks.ctr.trained import ClickMetrics, TrainedClickModel, key_names, numbers_file
from marius_oac.tasks.graph import GraphConfig
from marius_oac.tasks.link_prediction.trained import TrainedModel, row_names
from marius_oac.tasks.node_classification.trained import TrainedClassifier


def evaluate_run(
    path: str | Path,
    data: str | Sequence[str] = "test",
    overrides: Iterable[str] = (),
    checkpoint: str | None = None,
    *,
    data_path: str | Path | None = None,
    trust: bool = False,
) -> Metrics | ClickMetrics:
    """Evaluates a run's result on a split; a model of clicks also on files.

    The data lies at `data_path`, or where it is found (`folder.places`).

    Raises:
        InputError: files for a run on a graph; see also the classes' `evaluate`.
    """
    run = RunFolder.open(path)
    if run.config.task == "ctr":
        with TrainedClickModel.open(path, checkpoint, data_path=data_path, trust=trust) as model:
            return model.evaluate(data, overrides)
    if not isinstance(data, str):
        raise InputError("the run was trained on a graph; it is evaluated on its splits", "--data")
    return _of_graph(run).open(path, checkpoint, data_path=data_path, trust=trust).evaluate(data, overrides)


def export_run(
    path: str | Path,
    format: str,
    out: Path | None = None,
    checkpoint: str | None = None,
    *,
    data_path: str | Path | None = None,
    trust: bool = False,
) -> Path:
    """Writes the embeddings of a run with their names; returns the new folder (default: RUN/export-FORMAT)."""
    run = RunFolder.open(path)
    folder = out or run.path / f"export-{format}"
    if isinstance(run.config, CtrConfig):
        chosen = run.checkpoint(checkpoint)
        rows = {name: chosen.array(name, "values") for name in chosen.tables()}
        export(rows, key_names(run.config, chosen), format, folder, numbers_file(run.config))
        return folder
    tables, names = _of_graph(run).open(path, checkpoint, data_path=data_path, trust=trust).exported()
    export(tables, names, format, folder)
    return folder


def _of_graph(run: RunFolder) -> type[TrainedModel | TrainedClassifier]:
    """The class of a run's result, for a run on a graph."""
    return TrainedModel if run.config.task == "graph" else TrainedClassifier


def compare_runs(first: str | Path, second: str | Path, *, data_path: str | Path | None = None) -> Comparison:
    """Compares the results of two runs, bit by bit; rows have names if the first run's graph is found, at `data_path`
    or at its place."""
    folder, other = RunFolder.open(first), RunFolder.open(second)
    names: Mapping[str, Names] = {}
    if isinstance(folder.config, CtrConfig):
        chosen = folder.checkpoint()
        return compare(chosen, other.checkpoint(), key_names(folder.config, chosen))
    config = cast(GraphConfig, RunPlaces(folder, data_path).config())
    try:
        graph = open_or_prepare(config.data.path)
        folder.check_data(graph.fingerprint, config)
        names = row_names(config, graph) if isinstance(config, Config) else {ENTITIES: graph.node_names}
    except InputError:  # bits can be compared without the graph
        if data_path is not None:
            raise
    return compare(folder.checkpoint(), other.checkpoint(), names)
