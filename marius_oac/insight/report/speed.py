"""Sections on time: examples per second, the stages' threads, batches that wait in channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from marius_oac.insight.report.curves import Course, binned
from marius_oac.insight.report.drawing import band, colour, heat_map
from marius_oac.insight.report.history import ORDER, History
from marius_oac.insight.report.lines import binned_drawings, line_figure, of_intervals
from marius_oac.insight.report.parts import Figure, Report, Section, Table, epoch_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 60
_LEAST_SHARE = 0.002  # of the busiest stage; what is less can't be seen
CHANNELS = ("planned", "announced", "fetched", "read", "uploaded", "computed", "downloaded")
"""In the order in which a batch waits in them."""


def speed(report: Report) -> Section | None:
    """How fast each run was, and what its threads did meanwhile."""
    over_nodes = any(run.over_nodes for run in report.runs)
    rates, by_epoch = of_intervals(report, lambda line, _: line.examples_per_second)
    table = epoch_table(report, "Examples per second by epoch" + ", of all trainers" * over_nodes, by_epoch)
    title = "Examples per second" + " (first trainer)" * over_nodes
    blocks: list[Figure | Table] = [*line_figure(report, "rate", title, rates, table, from_0=True)]
    for number, run in enumerate(report.runs):
        blocks += [*_stages(report, number, run), *_channels(report, number, run)]
    return Section("speed", "Speed", (), blocks) if blocks else None


def _stages(report: Report, number: int, run: History) -> list[Figure]:
    """A stacked band of the seconds that the stages' threads were busy, per second of training."""
    total = run.stage_seconds()
    if not total or not run.seconds:
        return []
    least = _LEAST_SHARE * max(total.values())
    groups = {name: [name] for name in total if name in ORDER and total[name] >= least}
    if rest := [name for name in total if name not in groups]:
        groups["other stages"] = rest
    series = ["soft" if kind == "other stages" else f"stage-{ORDER.index(kind)}" for kind in groups]
    spent = [[sum(line.stage_seconds.get(name, 0.0) for name in names) for line in run.intervals]
             for names in groups.values()]  # fmt: skip
    cuts, sums = binned(np.array([*spent, [line.seconds for line in run.intervals]]), _BINS)
    heights = sums[:-1] / np.maximum(sums[-1], 1e-9)

    def paint(axes: Axes, edges: np.ndarray) -> None:
        band(axes, edges, heights, [colour(name) for name in series])

    drawings = binned_drawings(f"stages-{number}", Course.of(run), cuts, paint, 270, 56)
    rows = [[kind, f"{sum(busy):,.2f}", f"{sum(busy) / run.seconds:.1%}"]
            for kind, busy in zip(groups, spent, strict=True)]  # fmt: skip
    caption = f"Seconds per stage, in {run.seconds:,.1f} s of training"
    table = Table(caption, ["stage", "busy seconds", "of the time"], rows, series)
    found, words = run.bound(), "Threads that are busy with each stage."
    if found:
        words += f" {found.line[:1].upper()}{found.line[1:]}."
        if found.by == "compute" and "validate" in groups:
            words += " Here compute includes `validate`, which the same thread does."
    return [Figure(f"{report.of(number)}Seconds per stage", words, drawings, table)]


def _channels(report: Report, number: int, run: History) -> list[Figure]:
    """A heat map of the batches that waited in each channel."""
    names = [name for name in CHANNELS if any(name in line.channel_fill for line in run.intervals)]
    if not names:
        return []
    course = Course.of(run)
    weights = np.maximum(np.diff(course.batches), 1)
    fills = [[line.channel_fill.get(name, 0.0) for line in run.intervals] for name in names]
    cuts, sums = binned(np.array([*fills, np.ones(len(weights))]) * weights, _BINS)
    fill = sums[:-1] / sums[-1]
    most = float(fill.max())
    if not most > 0:
        return []

    def paint(axes: Axes, edges: np.ndarray) -> None:
        heat_map(axes, edges, fill / most, names)

    drawings = binned_drawings(f"channels-{number}", course, cuts, paint, 60 + 24 * len(names), 92)
    rows = [[name, f"{each.mean():.2f}", f"{each.max():.2f}"] for name, each in zip(names, fill, strict=True)]
    table = Table("Batches that wait, by channel", ["channel", "mean", "most"], rows)
    fullest = names[int(np.argmax(fill.mean(axis=1)))]
    words = (
        f"Batches that have left a stage and wait for the next one; the stronger the colour, the more, up to "
        f"{most:.1f}. Most wait as `{fullest}`: what follows that is slower than what comes before."
    )
    return [Figure(f"{report.of(number)}Batches that wait", words, drawings, table)]
