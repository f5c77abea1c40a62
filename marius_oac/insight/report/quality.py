"""The section on what was measured with the models: by relation, by degree, calibration, and a map of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from marius_oac.evaluation.quality import Bin, Group, Plane, Quality
from marius_oac.insight.report.drawing import bars, colour, draw, tidy
from marius_oac.insight.report.parts import Figure, Report, Section, Table, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 20
_MOST_ROWS = 200
_LONGEST = 22
"""Characters of a name beside a bar."""


def quality(report: Report) -> Section | None:
    """What was measured with the models, where they were opened."""
    blocks: list[Figure | Table] = []
    sentences = []
    for number, found in enumerate(report.qualities):
        if found.measured:
            what = "answers of {:,} edges" if found.degrees else "{:,} examples"
            sentences.append(f"{report.of(number)}Measured on {what.format(found.measured)} of `{found.split}`.")
    figures = [_figures(report, number, found) for number, found in enumerate(report.qualities)]
    for id in ("relations", "degrees", "calibration", "map"):  # of all runs beside each other
        blocks += [of_run[id] for of_run in figures if id in of_run]
    return Section("quality", "Quality", sentences, blocks) if blocks else None


def _figures(report: Report, number: int, found: Quality) -> dict[str, Figure]:
    figures = {}
    for id, title, first, groups in (
        ("relations", "MRR by relation", "relation", found.relations),
        ("degrees", "MRR by the answer's edges in train", "edges", found.degrees),
    ):
        if groups:
            figures[id] = _groups(f"{id}-{number}", f"{report.of(number)}{title}", first, groups)
    if found.bins:
        figures["calibration"] = _calibration(report, number, found.bins)
    if found.plane is not None:
        figures["map"] = _plane(report, number, found.plane)
    return figures


def _groups(id: str, title: str, first: str, groups: Sequence[Group]) -> Figure:
    shown = groups[:_MOST_BARS]
    least, most = (pick(groups, key=lambda each: each.mrr) for pick in (min, max))
    words = f"{title}: from {number_text(least.mrr)} ({least.name}) to {number_text(most.mrr)} ({most.name})"
    if len(groups) > len(shown):
        words += f"; the {len(shown)} with the most answers of {len(groups):,} are drawn"
    rows = [[each.name, number_text(each.mrr), f"{each.count:,}"] for each in groups[:_MOST_ROWS]]
    table = Table(f"{title}, with the most answers first" if first == "relation" else title,
                  [first, "MRR", "answers"], rows, open=False)  # fmt: skip
    names = [each.name if len(each.name) <= _LONGEST else each.name[: _LONGEST - 1] + "\u2026" for each in shown]
    left = 24 + 6 * max(map(len, names))
    values = [each.mrr for each in shown]
    drawing = draw(id, lambda axes: bars(axes, names, values, "MRR"), 60 + 20 * len(shown), left)
    return Figure(title, f"{words}.".replace("`", "'"), {"": drawing}, table)


def _calibration(report: Report, number: int, bins: Sequence[Bin]) -> Figure:
    places, clicked = np.array([each.predicted for each in bins]), np.array([each.clicked for each in bins])
    most = max(float(places.max()), float(clicked.max()), 1e-9)

    def paint(axes: Axes) -> None:
        axes.plot([0, most], [0, most], color=colour("soft"), linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(places, clicked, color=colour(f"run-{number}"), marker="o", markersize=4)
        tidy(axes, "mean prediction", "part that are clicks")

    rows = [[number_text(each.predicted), number_text(each.clicked), f"{each.count:,}"] for each in bins]
    counts = np.array([each.count for each in bins])
    words = (
        f"Examples in {len(bins)} bins of neighbouring predictions. On the dashed line as many are clicks as are "
        f"predicted; the mean prediction is {number_text(float(places @ counts / counts.sum()))}, and "
        f"{number_text(float(clicked @ counts / counts.sum()))} are clicks."
    )
    table = Table("Calibration", ["mean prediction", "clicks", "examples"], rows, open=False)
    return Figure(f"{report.of(number)}Calibration", words, {"": draw(f"calibration-{number}", paint, 300)}, table)


def _plane(report: Report, number: int, plane: Plane) -> Figure:
    def paint(axes: Axes) -> None:
        axes.plot(*plane.points.T, linestyle="none", marker="o", markersize=2.2, markeredgewidth=0,
                  color=colour(f"run-{number}"))  # fmt: skip
        tidy(axes, "first principal component", "second")

    shares = [f"{share:.1%}" for share in plane.shares]
    words = (
        f"{len(plane.points):,} of {plane.rows:,} rows, each a point, on the two directions in which they vary most; "
        f"these have {shares[0]} and {shares[1]} of the variance."
    )
    spread = plane.points.std(axis=0)
    rows = [[name, share, number_text(float(each))]
            for name, share, each in zip(("first", "second"), shares, spread, strict=True)]  # fmt: skip
    table = Table("Principal components", ["component", "of the variance", "standard deviation"], rows, open=False)
    title = f"{report.of(number)}Map of embeddings"
    return Figure(title, words, {"": draw(f"map-{number}", paint, 340)}, table)
