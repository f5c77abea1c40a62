"""Figures of curves: one line for each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from marius_oac.insight.report.curves import AXES, Course, Curve, curve
from marius_oac.insight.report.drawing import DASHES, colour, draw, tidy
from marius_oac.insight.report.history import Interval
from marius_oac.insight.report.parts import Figure, Report, Table, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_MARKED = 30
"""Points of a curve that are marked, where it has no more."""

ByEpoch = list[dict[int, float | None]]
"""Of each run a value by epoch, counted from 1."""


def line_figure(
    report: Report,
    id: str,
    title: str,
    curves: Sequence[Curve],
    table: Table,
    marks: bool = False,
    from_0: bool = False,
) -> list[Figure]:
    """A figure of one curve for each run, on every axis; none where there is nothing to draw.

    Args:
        marks: whether points are marked.
        from_0: whether the vertical axis begins at 0, as that of amounts does whose ratios are compared.
    """
    drawn = [each for each in curves if each.is_drawn]
    if not drawn:
        return []
    drawings = {}
    for axis, label in AXES.items():
        lines = [(each, places) for each in drawn if (places := each.course.at(axis, each.batches)) is not None]

        def paint(axes: Axes, lines: list[tuple[Curve, np.ndarray]] = lines, label: str = label) -> None:
            for each, places in lines:
                axes.plot(
                    places, each.values, color=colour(f"run-{each.run}"), linestyle=DASHES[each.run % len(DASHES)],
                    marker="o" if marks and len(places) <= _MOST_MARKED else None, markersize=4,
                    label=report.letter(each.run),
                )  # fmt: skip
            tidy(axes, label)
            if from_0:
                axes.set_ylim(0)
            if report.several:
                axes.legend(frameon=False, ncols=len(lines))

        if lines:
            drawings[axis] = draw(f"{id}-{axis}", paint)
    words = "; ".join(
        f"{report.letter(each.run) + ' ' if report.several else ''}from {number_text(float(each.values[0]))} to "
        f"{number_text(float(each.values[-1]))}"
        for each in drawn
    )
    return [Figure(title, f"{title}: {words}.", drawings, table)]


def of_intervals(report: Report, value: Callable[[Interval, float], float | None]) -> tuple[list[Curve], ByEpoch]:
    """Of each run the curve of a value of its intervals, given how many batches each has, and its values by epoch."""
    curves, by_epoch = list[Curve](), ByEpoch()
    for number, run in enumerate(report.runs):
        ends = [line.batch + 1.0 for line in run.intervals]
        counts = np.diff([0.0, *ends])
        values = [value(line, max(count, 1.0)) for line, count in zip(run.intervals, counts, strict=True)]
        curves.append(curve(report.runs, number, ends, values))
        by_epoch.append({each.epoch + 1: value(each, 1.0) for each in run.epochs})
    return curves, by_epoch


def of_epochs(report: Report, name: str) -> tuple[list[Curve], ByEpoch]:
    """Of each run the curve of a value of its epochs' lines, and the values by epoch."""
    curves, by_epoch = list[Curve](), ByEpoch()
    for number, run in enumerate(report.runs):
        found = [each for each in run.epochs if name in each.values]
        values = [each.values[name] for each in found]
        curves.append(curve(report.runs, number, [each.batch + 1 for each in found], values))
        by_epoch.append({each.epoch + 1: value for each, value in zip(found, values, strict=True)})
    return curves, by_epoch


def binned_drawings(
    id: str, course: Course, cuts: np.ndarray, paint: Callable[[Axes, np.ndarray], None], height: int, left: int
) -> dict[str, str]:
    """Drawings by axis of what `paint` draws of bins, given axes and the edges of the bins, float64 [bins + 1]."""
    drawings = {}
    for axis, label in AXES.items():
        edges = course.at(axis, course.batches[cuts])
        if edges is None:
            continue

        def whole(axes: Axes, edges: np.ndarray = edges, label: str = label) -> None:
            tidy(axes, label)
            paint(axes, edges)
            axes.set_xlim(edges[0], max(edges[-1], edges[0] + 1e-9))

        drawings[axis] = draw(f"{id}-{axis}", whole, height, left)
    return drawings
