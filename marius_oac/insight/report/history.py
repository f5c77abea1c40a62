"""What the folder of a run says about its training.

The folder may be a stranger's: its files are read within limits, each field must have its type, and no link is followed
out of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from marius_oac.config.task import TaskConfig
from marius_oac.errors import CheckpointError
from marius_oac.pipeline.bound import Bound, bound, bound_by_evaluation
from marius_oac.pipeline.setting import STAGES, Setting
from marius_oac.runs.folder.about import ABOUT
from marius_oac.runs.folder.folder import CONFIG, SUMMARY, RunFolder
from marius_oac.runs.folder.metrics import METRICS
from marius_oac.runtime.files.untrusted import Count, Described, typed

MOST_BYTES = 256 << 20
"""Of `metrics.jsonl`: a line has a kilobyte or less."""
READ = (ABOUT, CONFIG, METRICS, SUMMARY)
"""The files of a run that are read."""
MOST_NAMES = 1000
"""Of the values of a line."""


_Text = Annotated[str, Field(max_length=500)]
_Amount = Annotated[float, Field(ge=0, le=1e12)]


class _Line(Described):
    """What all lines have; batches and epochs count from 0."""

    epoch: Count
    batch: Annotated[int, Field(ge=-1, le=1 << 48)]


class Interval(_Line):
    """Some batches; see `reporting.Totals`. A loss of None was no finite number."""

    loss: float | None
    seconds: _Amount
    examples_per_second: Annotated[float, Field(ge=0)]
    lost_updates: Count = 0
    refused_rows: Count = 0
    replaced_rows: Count = 0
    stage_seconds: dict[str, _Amount] = {}
    channel_fill: dict[str, _Amount] = {}


class Epoch(Interval):
    """The batches of an epoch, and all numbers of its line by name."""

    values: dict[str, float]


class Evaluation(_Line):
    """One evaluation: on which split, and its numbers by name."""

    split: _Text
    values: dict[str, float]


class ModeChange(_Line):
    """What mode `auto` of several nodes decided after a batch, and why."""

    mode: _Text
    switches: bool = False
    reason: _Text = ""


@dataclass(frozen=True)
class History:
    """A run, as its folder tells it.

    Attributes:
        name: of the folder.
        summary: empty while the run has not ended.
        over_nodes: several processes have trained; intervals are those of the first one.
    """

    name: str
    config: TaskConfig
    summary: Mapping[str, Any]
    intervals: Sequence[Interval]
    epochs: Sequence[Epoch]
    evaluations: Sequence[Evaluation]
    modes: Sequence[ModeChange]
    over_nodes: bool

    @property
    def batches(self) -> int:
        """Batches trained so far."""
        return max((line.batch + 1 for line in (*self.intervals, *self.epochs)), default=0)

    @property
    def seconds(self) -> float:
        """Seconds spent training, by the intervals."""
        return sum(line.seconds for line in self.intervals)

    def stage_seconds(self) -> dict[str, float]:
        """Busy seconds per stage, over all its threads, in the order in which a batch passes them."""
        found: dict[str, float] = {}
        for line in self.intervals:
            for stage, seconds in line.stage_seconds.items():
                found[stage] = found.get(stage, 0.0) + seconds
        order = {stage: number for number, stage in enumerate(ORDER)}
        return dict(sorted(found.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))

    def bound(self) -> Bound | None:
        """What bound the run, as is said at its end; None: unknown."""
        setting = self._setting()
        if setting is None:
            return None
        return bound(self.stage_seconds(), self.seconds, setting, self.config.data_grows, self.batches, self.over_nodes)

    def bound_by_evaluation(self) -> Bound | None:
        """What is said where evaluations took longer than training; None: they did not, or it is unknown."""
        spent = sum(max(0.0, each.values.get("seconds", 0.0)) for each in self.evaluations)
        return bound_by_evaluation(self.seconds, spent)

    def _setting(self) -> Setting | None:
        last = self.epochs[-1].values if self.epochs else {}
        names = {"window": "machine.in_flight"} | {stage: f"machine.workers.{stage}" for stage in STAGES}
        found = {field: int(last[name]) for field, name in names.items() if 1 <= last.get(name, 0) <= 1 << 20}
        return Setting(**found) if len(found) == len(names) else None

    def last(self, *splits: str) -> Evaluation | None:
        """The last evaluation of these splits; None: there was none."""
        return next((each for each in reversed(self.evaluations) if each.split in splits), None)


ORDER = ("plan", "settle", "fetch", "wait", "read", "upload", "validate", "compute", "download", "write")
"""Stages, as a batch passes them."""


_KINDS: Mapping[str, type[_Line]] = {
    "interval": Interval, "epoch": Epoch, "evaluation": Evaluation, "mode": ModeChange,
}  # fmt: skip


def read_history(path: Path) -> History:
    """Reads a run's folder; the run may be training.

    Raises:
        CheckpointError: there is no run, or its files are damaged, too large, or links that lead out of it.
        ConfigError: its config.yaml is not the one that it was trained with.
    """
    for name in READ:
        _check_inside(path, name)
    folder = RunFolder.open(path)
    where = folder.metrics.path
    if os.path.exists(where) and os.stat(where).st_size > MOST_BYTES:
        raise CheckpointError(f"is larger than the {MOST_BYTES >> 20} MiB that a report reads", where)
    of_kinds: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    for line in folder.metrics.lines():
        if kind := _KINDS.get(line["kind"]):
            values = {} if kind is Interval else numbers(line)
            of_kinds[line["kind"]].append(typed({**line, "values": values}, where, kind, CheckpointError))
    history = History(
        name=folder.path.resolve().name,
        config=folder.config,
        summary=folder.summary(),
        intervals=of_kinds["interval"],
        epochs=of_kinds["epoch"],
        evaluations=of_kinds["evaluation"],
        modes=of_kinds["mode"],
        over_nodes=folder.over_nodes,
    )
    for lines in (history.intervals, history.epochs):
        if any(later.batch < sooner.batch for sooner, later in pairwise(lines)):
            raise CheckpointError("is damaged: its batches are not in order", where)
    return history


def _check_inside(folder: Path, name: str) -> None:
    """Raises CheckpointError where a file of a folder is a symbolic link that leads out of it."""
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError("is a symbolic link that leads out of the run's folder", path)


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The values of a line, or of a summary, that are numbers, by name."""
    found = {
        name: value for name, value in line.items() if type(value) in (int, float) and name not in _Line.model_fields
    }
    if len(found) > MOST_NAMES:
        raise CheckpointError(f"is damaged: {len(found):,} values, {MOST_NAMES:,} at most are expected", METRICS)
    return {name: value for name, value in found.items() if abs(value) <= LARGEST}


LARGEST = 1e30
"""Of what is drawn: beyond it arithmetic of axes overflows; NaN is left out, too."""
