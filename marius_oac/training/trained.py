"""Uses of a finished run of any task: evaluate it, predict with it, export it, compare it with another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from marius_oac.errors import InputError
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.predict import Prediction
from marius_oac.evaluation.quality import Quality
from marius_oac.runs.arithmetic import difference
from marius_oac.runs.compare import Comparison, compare
from marius_oac.runs.export import export
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runtime.standstill import watched
from marius_oac.tasks.registry import entry_of
from marius_oac.tasks.trained import Question


def evaluate_run(
    path: str | Path,
    data: str | Sequence[str] = "test",
    overrides: Iterable[str] = (),
    checkpoint: str | None = None,
    *,
    data_path: str | Path | None = None,
    trust: bool = False,
) -> Metrics:
    """Evaluates a run's result on a split; a model of clicks also on files.

    The data lies at `data_path`, or where it is found (`folder.places`).

    Raises:
        InputError: files for a run on a graph; see also the classes' `evaluate`.
    """
    config = RunFolder.open(path).config
    trained = entry_of(config).trained
    with watched(config.stall_after), trained.open(path, checkpoint, data_path=data_path, trust=trust) as model:
        return model.evaluate(data, overrides)


def quality_of_run(path: str | Path, *, data_path: str | Path | None = None, trust: bool = False) -> Quality:
    """Measures parts of the test split with a run's result, for a report. Raises as `evaluate_run`."""
    trained = entry_of(RunFolder.open(path).config).trained
    with trained.open(path, data_path=data_path, trust=trust) as model:
        return model.quality()


def predict_run(
    path: str | Path,
    question: Question,
    checkpoint: str | None = None,
    *,
    data_path: str | Path | None = None,
    trust: bool = False,
) -> Path | list[Prediction]:
    """Predicts with a run's result; returns the answers, best first, or the file that they were written to.

    Raises:
        InputError: it is no question for this run.
    """
    config = RunFolder.open(path).config
    trained = entry_of(config).trained
    if not trained.understands(question):
        raise InputError(config.how_to_ask, path)
    with watched(config.stall_after), trained.open(path, checkpoint, data_path=data_path, trust=trust) as model:
        return model.answer(question)


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
    found = entry_of(run.config).trained.exported_from(path, checkpoint, data_path=data_path, trust=trust)
    export(found.tables, found.names, format, folder, found.texts)
    return folder


def compare_runs(first: str | Path, second: str | Path, *, data_path: str | Path | None = None) -> Comparison:
    """Compares the results of two runs, bit by bit; rows have names if the first run's graph is found, at `data_path`
    or at its place."""
    folder, other = RunFolder.open(first), RunFolder.open(second)
    chosen = folder.checkpoint()
    names = entry_of(folder.config).trained.names_in(folder, chosen, data_path)
    found = compare(chosen, other.checkpoint(same=chosen), names)
    return replace(found, installations=difference(folder.about.arithmetic, other.about.arithmetic))
