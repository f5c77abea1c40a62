"""The section on memory and disk space: the plan beside what was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from marius_oac.runs.memory.plan import PLACES
from marius_oac.runs.report.drawing import Paint, colour, draw, tidy
from marius_oac.runs.report.history import History, numbers
from marius_oac.runs.report.parts import Figure, Report, Section, Table, bytes_text, columns, header

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def memory(report: Report) -> Section | None:
    """The memory plan beside what was used."""
    blocks: list[Figure | Table] = []
    plans = [_plan(run) for run in report.runs]
    for place in PLACES:
        parts = [plan.get(place, {}) for plan in plans]
        if max(map(len, parts)) < 2:
            names = list(dict.fromkeys(name for each in parts for name in each))
            rows = [[name, *(bytes_text(each[name]) if name in each else "" for each in parts)] for name in names]
            if rows:
                blocks.append(Table(f"{PLACES[place].capitalize()}, planned", header(report, "what"), rows))
            continue
        for number, run in enumerate(report.runs):
            if parts[number]:
                used = _peak(run) if place == "host" else None
                blocks.append(_planned(report, number, place, parts[number], used))
    if not blocks:
        names = ["memory.peak_rss_bytes", "machine.planned_bytes.host"]
        found = columns(report, names, lambda run, name: run.epochs[-1].values.get(name) if run.epochs else None)
        blocks = [Table("Memory", header(report, "what"), found)] if found else []
    return Section("memory", "Memory and disk space", (), blocks) if blocks else None


def _plan(run: History) -> dict[str, dict[str, float]]:
    """The plan of a run by place; what has another form than this program writes is left out."""
    plan = run.summary.get("machine.memory_plan")
    if not isinstance(plan, dict):
        return {}
    found = {place: numbers(parts) for place, parts in plan.items() if place in PLACES and isinstance(parts, dict)}
    return {
        place: {what: size for what, size in parts.items() if size > 0}
        for place, parts in found.items()
        if any(parts.values())
    }


def _peak(run: History) -> float | None:
    value = run.summary.get("memory.peak_rss_bytes")
    return float(value) if isinstance(value, int | float) and 0 < value < 1e18 else None


def _planned(report: Report, number: int, place: str, parts: Mapping[str, float], used: float | None) -> Figure:
    parts = dict(sorted(parts.items(), key=lambda item: -item[1]))
    shown = dict(list(parts.items())[:9])
    others = sum(parts.values()) - sum(shown.values())
    if others:
        shown["other parts"] = others
    total = sum(parts.values())
    rows = [[what, bytes_text(size)] for what, size in shown.items()] + [["all of it", bytes_text(total)]]
    swatches = [f"stage-{count}" for count in range(len(shown))]
    words = f"{bytes_text(total)} of {PLACES[place]} were planned"
    if used is not None:
        rows.append(["used at most", bytes_text(used)])
        words += f", and {bytes_text(used)} were used at most ({used / total:.0%})"
    drawings = {
        "": draw(f"memory-{number}-{place}", _bars(list(shown.values()), used), 150 if used is not None else 110)
    }
    table = Table("Parts of the plan", ["what", "size"], rows, swatches)
    return Figure(f"{report.of(number)}{PLACES[place].capitalize()}", f"{words}.", drawings, table, beside=True)


def _bars(sizes: Sequence[float], used: float | None) -> Paint:
    """The parts of a plan end to end, and below them what was used; all in bytes."""
    most = max(sum(sizes), used or 0)
    unit, unit_name = (1 << 30, "GiB") if most >= 4 << 30 else (1 << 20, "MiB")

    def paint(axes: Axes, narrow: bool) -> None:
        left = 0.0
        for count, size in enumerate(sizes):
            axes.barh(
                1, size / unit, left=left, height=0.7, color=colour("stage", count), edgecolor=colour("surface"),
                linewidth=0.6,
            )  # fmt: skip
            left += size / unit
        if used is not None:
            axes.barh(0, used / unit, height=0.7, color=colour("soft"))
        tidy(axes, unit_name, narrow)
        axes.set_yticks([1, 0] if used is not None else [1], ["plan", "used"] if used is not None else ["plan"])
        axes.set_xlim(0, most / unit * 1.01)
        axes.grid(visible=False)

    return paint
