"""The report of a search over settings: one HTML file, as that of a run (`runs/report`), of what its folder holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marius_oac.config.space import SpaceConfig
from marius_oac.config.task import build_config
from marius_oac.errors import InputError
from marius_oac.runs.report.details import flat
from marius_oac.runs.report.drawing import check_matplotlib
from marius_oac.runs.report.history import check_inside
from marius_oac.runs.report.page import REPORT, html, write_page
from marius_oac.runs.report.parts import Figure, Section, Table, number_text, of_name
from marius_oac.runtime.files.untrusted import parse_json, read_if_there
from marius_oac.training.tune.figures import by_epoch, by_setting, by_trial, importance_figure, result
from marius_oac.training.tune.results import best_of, ranked, tested
from marius_oac.training.tune.sampling import ENOUGH_TRIALS, Sampling
from marius_oac.training.tune.trials import SEARCH, State, Trial, TrialsFolder, short

BEST_SHOWN, OTHERS_SHOWN, KEYS_DRAWN = 10, 50, 20
_STATES: dict[State, str] = {
    "complete": "complete", "pruned": "stopped early", "failed": "failed", "running": "not ended",
}  # fmt: skip


@dataclass(frozen=True)
class Study:
    """What a search's folder holds.

    Attributes:
        config: that all trials share, as plain values.
        metric: on valid, by which trials are compared.
    """

    path: Path
    config: dict[str, Any]
    metric: str
    space: SpaceConfig
    trials: Sequence[Trial]

    @property
    def name(self) -> str:
        """Of the metric, in tables."""
        return f"valid {self.metric}"


def write_study_report(path: Path, out: Path | None = None) -> Path:
    """Writes a report of a search, which may go on meanwhile: `report.html` in its folder, or `out`; returns its path.

    Raises:
        InputError: the folder is damaged, a library is missing, or the file can't be written.
    """
    check_matplotlib()
    study = read_study(path)
    best = best_of(study.trials)
    sections = [_summary(study, best)]
    if best is not None:
        sections += [_course(study, best), _settings(study, best)]
    sections += [trials_section(study), config_section(study, best)]
    name = path.absolute().name
    return write_page(out or path / REPORT, lambda: html(f"Search: {name}", name, sections))


def read_study(path: Path) -> Study:
    """Reads the folder of a search. Raises InputError where it is damaged, or a file is a link that leads out of it."""
    folder = TrialsFolder(path)
    check_inside(path, SEARCH)
    check_inside(path, "trials")
    shared = parse_json(read_if_there(path / SEARCH) or b"", path / SEARCH, dict[str, Any])
    config, space = (shared.get(key) for key in ("config", "space"))
    if not isinstance(config, dict) or not isinstance(space, dict):
        raise InputError("is damaged: config and space are expected", path / SEARCH)
    try:
        made, searched = build_config(config, source=str(path / SEARCH)), SpaceConfig.model_validate(space)
    except ValidationError as error:
        raise InputError(f"is damaged: {error.errors()[0]['msg']}", path / SEARCH) from None
    number = 0
    while folder.file(number, "json").is_symlink() or folder.file(number, "json").exists():
        check_inside(path, str(folder.file(number, "json").relative_to(path)))
        number += 1
    trials = [_finite(trial) for trial in folder.trials()]
    return Study(path, config, made.decisive_metric, searched, trials)


def _finite(trial: Trial) -> Trial:
    """The trial without what is no number."""
    curve = tuple(each for each in trial.curve if math.isfinite(each[1]))
    value = trial.value if trial.value is not None and math.isfinite(trial.value) else None
    return trial.model_copy(update={"curve": curve, "value": value})


def _summary(study: Study, best: Trial | None) -> Section:
    counts = Counter(trial.state for trial in study.trials)
    states = ", ".join(f"{counts[state]:,} {words}" for state, words in _STATES.items() if counts[state])
    sentences = [
        f"{len(study.trials):,} trials of {len(study.space.space)} settings by `{study.space.sampler}`, pruner "
        f"`{study.space.pruner}`, seed {study.space.seed}: {states or 'none yet'}. They are compared by {study.metric} "
        "on the validation data."
    ]
    seconds = sum(trial.seconds for trial in study.trials)
    tiles = [("trials", f"{len(study.trials):,}"), ("seconds of all trials", of_name("seconds", float(seconds)))]
    if best is None:
        return Section("summary", "Summary", [*sentences, "No trial is complete yet."], (), tiles)
    sentences.append(f"The best is trial {best.number}; `best.yaml` beside `trials.tsv` is its config.")
    sentences.append(f"On test, by which nothing was chosen, it has: {tested(best)}.")
    tiles.insert(0, (study.name, number_text(best.value)))
    rows = [[key, short(value)] for key, value in best.values.items()]
    values = Table("The best trial's values", ["key", "value"], rows, texts=True)
    return Section("summary", "Summary", sentences, [values], tiles)


def _course(study: Study, best: Trial) -> Section:
    figures = [by_trial(study.trials, best, study.name), by_epoch(study.trials, best, study.name)]
    return Section("course", "The search", (), [each for each in figures if each is not None])


def _settings(study: Study, best: Trial) -> Section:
    """Which settings matter, and what each one's values gave."""
    sentences, blocks = list[str](), list[Figure | Table]()
    shares = dict[str, float]()
    try:
        shares = Sampling(study.space).importances(study.trials)
        if shares:
            blocks.append(importance_figure(shares))
        elif len(study.space.space) > 1:
            sentences.append(f"Which settings matter is told from {ENOUGH_TRIALS} complete trials on.")
    except InputError as error:
        sentences.append(f"Which settings matter is left out: {error.message}.")
    keys = [*shares, *(key for key in study.space.space if key not in shares)]
    if len(keys) > KEYS_DRAWN:
        sentences.append(f"{KEYS_DRAWN} of {len(keys)} settings are drawn.")
    for number, key in enumerate(keys[:KEYS_DRAWN]):
        blocks.append(by_setting(number, key, study.space.space[key], study.trials, best, study.name))
    return Section("settings", "Settings", sentences, blocks)


def trials_section(study: Study) -> Section:
    """The best trials, and those that were stopped or failed, with the reason."""
    keys = list(dict.fromkeys(key for trial in study.trials for key in trial.values))
    blocks, sentences = list[Figure | Table](), list[str]()
    complete = ranked(study.trials)
    rows = [[str(trial.number), number_text(trial.value), *_told(trial, keys)] for trial in complete[:BEST_SHOWN]]
    header = ["trial", study.name, "epochs", "seconds", *keys]
    if rows:
        blocks.append(Table(f"The best {len(rows)} of {len(complete):,} complete trials", header, rows, texts=True))
    others = [trial for trial in study.trials if trial.value is None]
    rows = [[str(trial.number), _why(trial, study.name), *_told(trial, keys)] for trial in others[:OTHERS_SHOWN]]
    if rows:
        caption = f"{len(rows)} of {len(others):,} trials without a result, and why"
        blocks.append(Table(caption, ["trial", "why", "epochs", "seconds", *keys], rows, texts=True))
    if len(study.trials) > len(complete[:BEST_SHOWN]) + len(rows):
        sentences.append("All trials are in `trials.tsv`.")
    return Section("trials", "Trials", sentences, blocks)


def _told(trial: Trial, keys: Sequence[str]) -> list[str]:
    epochs = trial.curve[-1][0] if trial.curve else 0
    values = [short(trial.values[key]) if key in trial.values else "" for key in keys]
    return [f"{epochs:,}", f"{trial.seconds:,.0f}", *values]


def _why(trial: Trial, name: str) -> str:
    if trial.state == "failed":
        return f"failed: {trial.why or 'its process said nothing'}"
    last = result(trial)
    known = "" if last is None else f", {name} {number_text(last)}"
    return f"stopped early by the pruner{known}" if trial.state == "pruned" else f"has not ended{known}"


def config_section(study: Study, best: Trial | None) -> Section:
    """The whole configuration: of the best trial, or what all trials share."""
    tree = flat(study.config)
    searched = best.values if best is not None else dict.fromkeys(study.space.space)
    for key, value in searched.items():
        tree = {other: text for other, text in tree.items() if not other.startswith(f"{key}.")}
        tree[key] = short(value) if best is not None else "searched"
    rows = [[key, text, "searched" if key in searched else ""] for key, text in tree.items()]
    caption = "The whole configuration of the best trial" if best else "The configuration that all trials share"
    return Section("details", "Details", (), [Table(caption, ["key", "value", ""], rows, open=False, texts=True)])
