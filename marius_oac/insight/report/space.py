"""The section on memory and disk space: the plan beside what was used."""

from __future__ import annotations

from marius_oac.insight.report.history import History, numbers
from marius_oac.insight.report.parts import Figure, Report, Section, Table, bytes_text, columns, header
from marius_oac.runs.memory.plan import PLACES


def memory(report: Report) -> Section | None:
    """The memory plan beside what was used."""
    blocks: list[Figure | Table] = []
    plans = [_plan(run) for run in report.runs]
    for place, words in PLACES.items():
        parts = [plan.get(place, {}) for plan in plans]
        names = sorted(
            {name: None for each in parts for name in each}, key=lambda name: -max(p.get(name, 0) for p in parts)
        )
        rows = [[name, *(bytes_text(each[name]) if name in each else "" for each in parts)] for name in names]
        if len(rows) > 1:
            rows.append(["all of it", *(bytes_text(sum(each.values())) for each in parts)])
        if rows:
            blocks.append(Table(f"{words.capitalize()}, planned", header(report, "what"), rows))
    sentences = []
    for number, run in enumerate(report.runs):
        planned, used = sum(plans[number].get("host", {}).values()), _peak(run)
        if planned and used:
            sentences.append(
                f"{report.of(number)}{bytes_text(planned)} of {PLACES['host']} were planned, and "
                f"{bytes_text(used)} were used at most ({used / planned:.0%})."
            )
    if not blocks:
        names = ["memory.peak_rss_bytes", "machine.planned_bytes.host"]
        found = columns(report, names, lambda run, name: run.epochs[-1].values.get(name) if run.epochs else None)
        blocks = [Table("Memory", header(report, "what"), found)] if found else []
    return Section("memory", "Memory and disk space", sentences, blocks) if blocks else None


def _plan(run: History) -> dict[str, dict[str, float]]:
    """The sizes of a run's plan by place and part; what has another form than this program writes is left out."""
    plan = run.summary.get("machine.memory_plan")
    places = plan.items() if isinstance(plan, dict) else ()
    return {
        place: {what: size for what, size in numbers(parts).items() if size > 0}
        for place, parts in places
        if isinstance(parts, dict)
    }


def _peak(run: History) -> float | None:
    value = run.summary.get("memory.peak_rss_bytes")
    return float(value) if isinstance(value, int | float) and 0 < value < 1e18 else None
