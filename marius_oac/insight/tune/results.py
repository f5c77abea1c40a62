"""What a search has found: the best trial's config as a file, and lines for the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from marius_oac.errors import InputError
from marius_oac.insight.tune.study import STUDY

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FIRST = 5
"""If as many trials fail at the beginning, the search ends: it is not their values."""
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
        run: the folder of the best trial's run.
        trials: all; at least one is complete.
        metric: by which trials are compared.
    """

    folder: Path
    run: Path
    trials: Sequence[FrozenTrial]
    metric: str

    def __str__(self) -> str:
        counts = Counter(trial.state.name.lower() for trial in self.trials)
        lines = [f"{self.folder}: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))]
        lines.append(f"  {'trial':>5}  {'valid ' + self.metric:>18}  values")
        best, *_ = found = ranked(self.trials)
        lines += [f"  {trial.number:>5}  {trial.value:>18.4f}  {told(trial.params)}" for trial in found[:SHOWN]]
        lines.append(f"the best on test, by which nothing was chosen: {tested(best)}")
        lines.append(f"its config: {self.folder / 'best.yaml'}; its run: {self.run}")
        lines.append(f"all trials: optuna-dashboard {quote(str(self.folder / STUDY))}")
        return "\n".join(lines)


def ranked(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Complete trials, the best first; of equal ones the earlier."""
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    return sorted(complete, key=lambda trial: (-(trial.value or 0.0), trial.number))


def check_failures(trials: Sequence[FrozenTrial]) -> None:
    """Raises InputError where all of the first trials have failed."""
    first = trials[:FIRST]
    if all(trial.state.name == "FAIL" for trial in first):
        why = first[-1].user_attrs.get("why", "")
        raise InputError(f"all of the first {len(first)} trials failed; the last: {why}", "tune")


def line_of(trial: FrozenTrial, best: FrozenTrial | None, metric: str) -> str:
    """How a trial has ended."""
    if trial.state.name == "COMPLETE":
        what = f"valid {metric} {trial.value:.4f}"
    elif trial.state.name == "PRUNED":
        what = f"stopped after epoch {trial.last_step}, valid {metric} {trial.value:.4f}"
    else:
        what = f"failed: {trial.user_attrs.get('why', '')}"
    known = (
        "" if best is None else " (best so far)" if best is trial else f" (best: {best.value:.4f}, trial {best.number})"
    )
    return f"trial {trial.number}: {what}{known}: {told(trial.params)}"


def tested(trial: FrozenTrial) -> str:
    """Its main metrics on test."""
    values = trial.user_attrs.get("test", {})
    shown = [f"{key.removeprefix('test.')} {values[key]:.4f}" for key in _TESTED if key in values]
    return ", ".join(shown) or "no test data"


def told(values: Mapping[str, Any]) -> str:
    """Values of settings, on one line."""
    return " ".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else str(value)
