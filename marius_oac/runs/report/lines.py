"""Figures of curves: one line for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from marius_oac.runs.report.curves import Course, Curve, curve
from marius_oac.runs.report.drawing import DASHES, Paint, colour, draw, name_at_ends, tidy
from marius_oac.runs.report.parts import Figure, Report, Table, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_MARKED = 30
"""Points of a curve that are marked, where it has no more."""

Points = Sequence[tuple[int, tuple[np.ndarray, np.ndarray]]]
"""Runs by number, with places and values, float64 [n] each."""


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
    for axis, label in report.axes.items():
        points = [(each.run, found) for each in drawn if (found := each.points(axis)) is not None]
        if points:
            drawings[axis] = draw(f"{id}-{axis}", _lines(report, points, label, marks, from_0))
    words = "; ".join(
        f"{report.letter(each.run) + ' ' if report.several else ''}from {number_text(float(each.values[0]))} to "
        f"{number_text(float(each.values[-1]))}"
        for each in drawn
    )
    return [Figure(title, f"{title}: {words}.", drawings, table)]


def _lines(report: Report, curves: Points, label: str, marks: bool, from_0: bool) -> Paint:
    def paint(axes: Axes, narrow: bool) -> None:
        ends = []
        for run, (places, values) in curves:
            axes.plot(
                places, values, color=colour("run", run), linestyle=DASHES[run % len(DASHES)],
                marker="o" if marks and len(places) <= _MOST_MARKED else None, markersize=4,
            )  # fmt: skip
            ends.append((float(values[-1]), report.letter(run), colour("run", run)))
        tidy(axes, label, narrow)
        if from_0:
            axes.set_ylim(0)
        if report.several:
            name_at_ends(axes, ends)

    return paint


def of_epochs(report: Report, name: str) -> tuple[list[Curve], list[dict[int, float | None]]]:
    """Of each run the curve of a value of its epochs' lines, and the values by epoch, counted from 1."""
    curves: list[Curve] = []
    values: list[dict[int, float | None]] = []
    for number, run in enumerate(report.runs):
        found = [(each.totals, each.values[name]) for each in run.epochs if name in each.values]
        ends = [totals.batch + 1 for totals, _ in found]
        curves.append(curve(number, Course.of(run), ends, [value for _, value in found]))
        values.append({totals.epoch + 1: value for totals, value in found})
    return curves, values
