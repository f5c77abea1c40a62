"""Sections on nodes, and the tables of everything."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marius_oac.insight.report.comparison import config_rows
from marius_oac.insight.report.history import History, numbers
from marius_oac.insight.report.lines import line_figure, of_epochs
from marius_oac.insight.report.parts import Figure, Report, Section, Table, columns, epoch_table, header

_NODES = ("dense.", "dealt.", "rows.", "nodes.", "packing.", "load.")
_CURVES = {
    "dealt.rows_staleness": "Mean staleness of row gradients so far, in steps",
    "dense.average_sync_gap": "Iterations between synchronisations of dense parameters",
}
_MOST_MODES = 40


def nodes(report: Report) -> Section | None:
    """Traffic, agreement of dense parameters, staleness, and changes of the mode, of runs over nodes."""
    if not any(run.over_nodes for run in report.runs):
        return None
    names = sorted({name for run in report.runs for name in _last(run) if name.startswith(_NODES)})
    found = columns(report, names, lambda run, name: _last(run).get(name))
    blocks: list[Figure | Table] = []
    if found:
        blocks.append(Table("Between the nodes, over the whole run", header(report, "what"), found))
    for name, title in _CURVES.items():
        curves, by_epoch = of_epochs(report, name)
        if any(np.ptp(each.values) > 0 for each in curves if len(each.values)):
            blocks += line_figure(report, name, title, curves, epoch_table(report, title, by_epoch), marks=True)
    for number, run in enumerate(report.runs):
        changes = [each for each in run.modes if each.switches]
        if changes:
            told = [[f"{each.batch + 2:,}", each.mode, each.reason] for each in changes[:_MOST_MODES]]
            caption = f"{report.of(number)}Changes of the mode"
            blocks.append(Table(caption, ["from batch", "mode", "reason"], told, texts=True))
    return Section("nodes", "Nodes", (), blocks) if blocks else None


def _last(run: History) -> Mapping[str, float]:
    return numbers(run.summary) or (run.epochs[-1].values if run.epochs else {})


def everything(report: Report) -> Section:
    """All results, and the whole configuration."""
    blocks: list[Figure | Table] = []
    names = list(dict.fromkeys(name for run in report.runs for name in _results(run)))
    if names:
        rows = columns(report, names, lambda run, name: _results(run).get(name))
        blocks.append(Table("All results", header(report, "what"), rows, open=False))
    rows = [[key, *map(_cut, values)] for key, *values in config_rows(report.runs)]
    blocks.append(Table("The whole configuration", header(report, "key"), rows, open=False, texts=True))
    return Section("details", "Details", (), blocks)


def _results(run: History) -> dict[str, float]:
    found = numbers(run.summary)
    if not found and (last := run.last("valid", "progressive")):
        found = {f"{last.split}.{name}": value for name, value in last.values.items()}
    return found


def _cut(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."
