"""Sections on rows: what validation replaced or was lost, and what rows on disk cost."""

from __future__ import annotations

from marius_oac.insight.report.lines import line_figure, of_epochs, of_intervals
from marius_oac.insight.report.parts import Figure, Report, Section, Table, bytes_text, columns, epoch_table, header

_ROWS = {
    "replaced_rows": "Rows replaced by validation",
    "lost_updates": "Updates lost",
    "refused_rows": "Rows refused",
}


def rows(report: Report) -> Section | None:
    """Rows that validation replaced, and what modes without it lose."""
    blocks: list[Figure | Table] = []
    for field, title in _ROWS.items():
        if any(getattr(line, field) for run in report.runs for line in run.intervals):
            curves, by_epoch = of_intervals(report, lambda line, count, field=field: getattr(line, field) / count)  # type: ignore[misc]
            table = epoch_table(report, f"{title} by epoch", by_epoch)
            blocks += line_figure(report, field, f"{title}, per batch", curves, table, from_0=True)
    sentences = [
        f"{report.of(number)}No update was lost."
        for number, run in enumerate(report.runs)
        if run.config.pipeline.mode == "oac" and not any(line.lost_updates for line in run.intervals)
    ]
    return Section("rows", "Rows", sentences, blocks) if blocks else None


def disk(report: Report) -> Section | None:
    """Bytes that rows on disk cost, and how many pages were in memory when they were needed."""
    last = [run.epochs[-1].values if run.epochs else {} for run in report.runs]
    names = sorted({name for each in last for name in each if name.startswith("disk.")})
    if not names:
        return None
    totals = columns(report, names, lambda run, name: run.epochs[-1].values.get(name) if run.epochs else None)
    blocks: list[Figure | Table] = [Table("Disk, over the whole run", header(report, "what"), totals)]
    for way in ("read", "written"):
        gains = [_gains(each) for each in of_epochs(report, f"disk.bytes_{way}")[1]]
        if any(gains):
            blocks.append(epoch_table(report, f"Bytes {way} by epoch", gains, bytes_text))
    curves, by_epoch = of_epochs(report, "disk.hit_rate")
    table = epoch_table(report, "Hit rate so far, by epoch", by_epoch)
    blocks += line_figure(report, "hits", "Pages in memory when they were needed", curves, table, marks=True)
    return Section("disk", "Disk", (), blocks)


def _gains(totals: dict[int, float | None]) -> dict[int, float | None]:
    """What each epoch adds to a total; a run that was resumed counts from 0 again."""
    found, before = dict[int, float | None](), 0.0
    for epoch, total in totals.items():
        now = total or 0.0
        found[epoch] = now - before if now >= before else now
        before = now
    return found
