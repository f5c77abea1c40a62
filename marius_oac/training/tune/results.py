"""What a search has found: the best trial's config as a file, all trials as a table, and lines for the user."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from marius_oac.config.space import at, written
from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import write_atomically
from marius_oac.training.tune.request import TuneRequest
from marius_oac.training.tune.trials import Trial, TrialsFolder

SHOWN = 5
_TESTED = (
    "test.filtered.mrr", "test.filtered.hits@10", "test.mrr", "test.hits@20", "test.hits@50", "test.hits@100",
    "test.auc", "test.log_loss", "test.accuracy",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The end of a search.

    Attributes:
        folder: of the search.
        best: its best trial.
        trials: all.
        metric: by which trials are compared.
    """

    folder: Path
    best: Trial
    trials: tuple[Trial, ...]
    metric: str

    def __str__(self) -> str:
        counts = Counter(trial.state for trial in self.trials)
        lines = [f"{self.folder}: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))]
        lines.append(f"  {'trial':>5}  {'valid ' + self.metric:>18}  {'seconds':>7}  values")
        for trial in ranked(self.trials)[:SHOWN]:
            lines.append(f"  {trial.number:>5}  {trial.value:>18.4f}  {trial.seconds:>7.0f}  {trial.told()}")
        lines.append(f"the best on test, by which nothing was chosen: {tested(self.best)}")
        run = TrialsFolder(self.folder).run(self.best.number)
        lines.append(f"its config: {self.folder / 'best.yaml'}; its run: {run}")
        lines.append(
            f"all trials: {self.folder / 'trials.tsv'}; as a page: marius-oac report {quote(str(self.folder))}"
        )
        return "\n".join(lines)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Complete trials, the best first; of equal ones the earlier."""
    return sorted((t for t in trials if t.value is not None), key=lambda trial: (-(trial.value or 0.0), trial.number))


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The best complete trial."""
    return next(iter(ranked(trials)), None)


def tested(trial: Trial) -> str:
    """Its main metrics on test."""
    shown = {key.removeprefix("test."): value for key, value in trial.test.items() if key in _TESTED}
    return ", ".join(f"{key} {value:.4f}" for key, value in shown.items()) or "no test data"


def write_results(folder: TrialsFolder, request: TuneRequest, trials: Sequence[Trial], metric: str) -> Outcome:
    """Writes `best.yaml` and `trials.tsv`. Raises InputError where no trial is complete."""
    best = best_of(trials)
    if best is None:
        raise InputError("no trial is complete: all were stopped early or failed", folder.path)
    config = at(best.values, request.config, request.overrides)
    about = (
        f"Trial {best.number} of {len(trials)}: valid {metric} {best.value:.4f}, on test {tested(best)}.\n"
        f"Made by: marius-oac tune {request.config} --space {request.space}\n"
        f"Chosen: {best.told()}"
    )
    write_atomically(folder.path / "best.yaml", written(config, about))
    write_atomically(folder.path / "trials.tsv", _table(trials, metric))
    return Outcome(folder.path, best, tuple(trials), metric)


def _table(trials: Sequence[Trial], metric: str) -> str:
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    text = io.StringIO()
    rows = csv.writer(text, delimiter="\t", lineterminator="\n")
    rows.writerow(["trial", "state", f"valid.{metric}", "epochs", "seconds", *keys, "why"])
    for trial in trials:
        epochs = trial.curve[-1][0] if trial.curve else 0
        values = [trial.values[key] for key in keys]
        value = "" if trial.value is None else trial.value
        rows.writerow([trial.number, trial.state, value, epochs, f"{trial.seconds:.1f}", *values, trial.why])
    return text.getvalue()
