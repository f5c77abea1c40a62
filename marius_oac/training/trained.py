"""What is done with a finished run, whatever its task: evaluate it, export it, compare it with another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs.graph import open_or_prepare
from marius_oac.errors import InputError
from marius_oac.evaluation.metrics import Metrics
from marius_oac.models.link_prediction.step import RELATIONS
from marius_oac.runs.compare import Comparison, compare
from marius_oac.runs.export import export
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.tasks.ctr.trained import ClickMetrics, TrainedClickModel, key_names, numbers_file
from marius_oac.tasks.link_prediction.trained import EMBEDDINGS, TrainedModel, row_names
from marius_oac.tasks.node_classification.trained import TrainedClassifier

SCORES = "scores"
"""Of each node's classes, in an export."""


def evaluate_run(
    path: str | Path,
    data: str | Sequence[str] = "test",
    overrides: Iterable[str] = (),
    checkpoint: str | None = None,
    *,
    data_path: str | Path | None = None,
    trust: bool = False,
) -> Metrics | ClickMetrics:
    """Evaluates a run's result, whatever its task was, on a split, or one on a click log on files; its data lies at
    `data_path`, or where it is found (`folder.places`).

    Raises:
        InputError: files for a run on a graph; see also the classes' `evaluate`.
    """
    task = RunFolder.open(path).config.task
    if task == "ctr":
        with TrainedClickModel.open(path, checkpoint, data_path=data_path, trust=trust) as model:
            return model.evaluate(data, overrides)
    if not isinstance(data, str):
        raise InputError("the run was trained on a graph; it is evaluated on its splits", "--data")
    opened = TrainedClassifier if task == "node_classification" else TrainedModel
    return opened.open(path, checkpoint, data_path=data_path, trust=trust).evaluate(data, overrides)


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
    if run.config.task == "ctr":
        chosen = run.checkpoint(checkpoint)
        export(
            {name: chosen.array(name, "values") for name in chosen.tables()},
            key_names(run.config, chosen),
            format,
            folder,
            numbers_file(run.config),
        )
        return folder
    if run.config.task == "node_classification":
        classifier = TrainedClassifier.open(path, checkpoint, data_path=data_path, trust=trust)
        tables = {SCORES: classifier.scores}
        if classifier.config.row_dimension:
            tables[EMBEDDINGS] = classifier.embeddings()
        export(tables, dict.fromkeys(tables, classifier.graph.node_names), format, folder)
        return folder
    model = TrainedModel.open(path, checkpoint, data_path=data_path, trust=trust)
    names = row_names(model.config, model.graph)
    tables = {ENTITIES: model.entities}
    if model.config.encoder and model.config.row_dimension:
        tables[EMBEDDINGS] = model.embeddings()
    relations = model.relation_values()
    if relations is not None:
        tables[RELATIONS] = relations.numpy()
    export(tables, names, format, folder)
    return folder


def compare_runs(first: str | Path, second: str | Path, *, data_path: str | Path | None = None) -> Comparison:
    """Compares the results of two runs, bit by bit; rows have names where the first run's graph is at hand, at
    `data_path` or where it is found."""
    folder, other = RunFolder.open(first), RunFolder.open(second)
    if folder.config.task == "ctr":
        chosen = folder.checkpoint()
        return compare(chosen, other.checkpoint(), key_names(folder.config, chosen))
    folder.config = RunPlaces(folder, data_path).config()
    try:
        graph = open_or_prepare(folder.config.data.path)
        folder.check_data(graph.fingerprint, folder.config)
        names = row_names(folder.config, graph) if folder.config.task == "graph" else {ENTITIES: graph.node_names}
    except InputError:  # the bits are there without it
        if data_path is not None:
            raise
        names = {}
    return compare(folder.checkpoint(), other.checkpoint(), names)
