"""Sections on time: examples per second, the stages' threads, batches that wait in channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from marius_oac.runs.report.curves import Course, binned, curve
from marius_oac.runs.report.drawing import band, colour, draw, heat_map, tidy
from marius_oac.runs.report.history import ORDER, History
from marius_oac.runs.report.lines import line_figure
from marius_oac.runs.report.parts import Figure, Report, Section, Table, epoch_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 60
_LEAST_SHARE = 0.002  # of the busiest stage; what is less can't be seen
CHANNELS = ("planned", "announced", "fetched", "read", "uploaded", "computed", "downloaded")
"""In the order in which a batch waits in them."""


def speed(report: Report) -> Section | None:
    """How fast each run was, and what its threads did meanwhile."""
    blocks: list[Figure | Table] = []
    courses = [Course.of(run) for run in report.runs]
    rates = [
        curve(number, courses[number], [line.batch + 1 for line in run.intervals],
              [line.examples_per_second for line in run.intervals])
        for number, run in enumerate(report.runs)
    ]  # fmt: skip
    by_epoch = [{each.totals.epoch + 1: each.totals.examples_per_second for each in run.epochs} for run in report.runs]
    caption = "Examples per second by epoch" + (
        ", of all trainers" if any(run.over_nodes for run in report.runs) else ""
    )
    title = "Examples per second" + (" (first trainer)" if any(run.over_nodes for run in report.runs) else "")
    blocks += line_figure(report, "rate", title, rates, epoch_table(report, caption, by_epoch), from_0=True)
    for number, run in enumerate(report.runs):
        blocks += _stages(report, number, run, courses[number])
        blocks += _channels(report, number, run, courses[number])
    return Section("speed", "Speed", (), blocks) if blocks else None


def _stages(report: Report, number: int, run: History, course: Course) -> list[Figure]:
    """A stacked band of the seconds that the stages' threads were busy, per second of training."""
    total = run.stage_seconds()
    if not total or not run.seconds:
        return []
    most = max(total.values())
    named = [name for name in total if name in ORDER and total[name] >= _LEAST_SHARE * most]
    rest = [name for name in total if name not in named]
    cuts, sums, seconds = binned(run, _BINS, [dict(line.stage_seconds) for line in run.intervals])
    kinds = [*named, *(["other stages"] if rest else [])]
    of = [*([name] for name in named), *([rest] if rest else [])]
    spent = np.array([[sum(each.get(name, 0.0) for name in names) for each in sums] for names in of])
    heights = spent / np.maximum(seconds, 1e-9)
    colours = [*(colour("stage", ORDER.index(name)) for name in named), *([colour("soft")] if rest else [])]
    drawings = {}
    for axis, label in report.axes.items():
        edges = course.at(axis, course.batches[cuts])
        if edges is None:
            continue

        def paint(axes: Axes, narrow: bool, edges: np.ndarray = edges, label: str = label) -> None:
            tidy(axes, label, narrow, "busy threads")
            band(axes, edges, heights, colours)
            axes.set_xlim(edges[0], max(edges[-1], edges[0] + 1e-9))
            axes.set_ylim(0)

        drawings[axis] = draw(f"stages-{number}-{axis}", paint, 270, left=56)
    sums_of = [sum(total[name] for name in names) for names in of]
    rows = [
        [kind, f"{each:,.2f}", f"{each / run.seconds:.1%}"] for kind, each in zip(kinds, sums_of, strict=True)
    ]  # fmt: skip
    swatches = [*(f"stage-{ORDER.index(name)}" for name in named), *(["soft"] if rest else [])]
    table = Table(
        f"Seconds per stage, in {run.seconds:,.1f} s of training",
        ["stage", "busy seconds", "of the time"],
        rows,
        swatches,
    )
    found = run.bound()
    words = "Threads that are busy with each stage."
    if found:
        words += f" {found.line[:1].upper()}{found.line[1:]}."
    if found and found.by == "compute" and "validate" in named:
        words += " Here compute includes `validate`, which the same thread does."
    return [Figure(f"{report.of(number)}Seconds per stage", words, drawings, table, beside=True)]


def _channels(report: Report, number: int, run: History, course: Course) -> list[Figure]:
    """A heat map of the batches that waited in each channel."""
    if not any(line.channel_fill for line in run.intervals):
        return []
    weights = [max(1, later - sooner) for sooner, later in zip(course.batches, course.batches[1:], strict=False)]
    weighted = [
        {name: fill * weight for name, fill in line.channel_fill.items()} | {"": float(weight)}
        for line, weight in zip(run.intervals, weights, strict=True)
    ]
    cuts, sums, _ = binned(run, _BINS, weighted)
    there = {name for each in sums for name in each if name}
    names = [name for name in CHANNELS if name in there]
    fill = np.array([[each.get(name, 0.0) / each[""] for each in sums] for name in names])
    if not names or not fill.max() > 0:
        return []
    most = float(fill.max())
    drawings = {}
    for axis, label in report.axes.items():
        edges = course.at(axis, course.batches[cuts])
        if edges is None:
            continue

        def paint(axes: Axes, narrow: bool, edges: np.ndarray = edges, label: str = label) -> None:
            tidy(axes, label, narrow)
            heat_map(axes, edges, fill / most, names)
            axes.set_xlim(edges[0], max(edges[-1], edges[0] + 1e-9))

        drawings[axis] = draw(f"channels-{number}-{axis}", paint, 60 + 24 * len(names), left=92)
    rows = [[name, f"{each.mean():.2f}", f"{each.max():.2f}"] for name, each in zip(names, fill, strict=True)]
    table = Table("Batches that wait, by channel", ["channel", "mean", "most"], rows)
    fullest = names[int(np.argmax(fill.mean(axis=1)))]
    words = (
        f"Batches that have left a stage and wait for the next one; the stronger the colour, the more, up to "
        f"{most:.1f}. Most wait as `{fullest}`: what follows that is slower than what comes before."
    )
    return [Figure(f"{report.of(number)}Batches that wait", words, drawings, table, beside=True)]
