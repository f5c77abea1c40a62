"""Sections on rows: what validation replaced or was lost, and what rows on disk cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from marius_oac.runs.report.curves import Course, curve
from marius_oac.runs.report.history import Interval
from marius_oac.runs.report.lines import line_figure, of_epochs
from marius_oac.runs.report.parts import Figure, Report, Section, Table, bytes_text, columns, epoch_table, header

_ROWS: Mapping[str, tuple[str, Callable[[Interval], int]]] = {
    "replaced": ("Rows replaced by validation, per batch", lambda line: line.replaced_rows),
    "lost": ("Updates lost, per batch", lambda line: line.lost_updates),
    "refused": ("Rows refused, per batch", lambda line: line.refused_rows),
}


def rows(report: Report) -> Section | None:
    """Rows that validation replaced, and what modes without it lose."""
    blocks: list[Figure | Table] = []
    courses = [Course.of(run) for run in report.runs]
    for id, (title, value) in _ROWS.items():
        if not any(value(line) for run in report.runs for line in run.intervals):
            continue
        curves = []
        for number, run in enumerate(report.runs):
            batches = np.diff(courses[number].batches)
            per_batch = [value(line) / max(count, 1.0) for line, count in zip(run.intervals, batches, strict=True)]
            curves.append(curve(number, courses[number], [line.batch + 1 for line in run.intervals], per_batch))
        by_epoch: list[dict[int, float | None]] = [
            {each.totals.epoch + 1: value(each.totals) for each in run.epochs} for run in report.runs
        ]
        caption = title.removesuffix(", per batch") + " by epoch"
        blocks += line_figure(report, f"rows-{id}", title, curves, epoch_table(report, caption, by_epoch), from_0=True)
    sentences = []
    for number, run in enumerate(report.runs):
        if run.config.pipeline.mode == "oac" and not any(line.lost_updates for line in run.intervals):
            sentences.append(f"{report.of(number)}No update was lost.")
    return Section("rows", "Rows", sentences, blocks) if blocks else None


def disk(report: Report) -> Section | None:
    """Bytes that rows on disk cost, and how many pages were in memory when they were needed."""
    last = [run.epochs[-1].values if run.epochs else {} for run in report.runs]
    names = sorted({name for each in last for name in each if name.startswith("disk.")})
    if not names:
        return None
    totals = columns(report, names, lambda run, name: run.epochs[-1].values.get(name) if run.epochs else None)
    blocks: list[Figure | Table] = [Table("Disk, over the whole run", header(report, "what"), totals)]
    moved = []
    for number, run in enumerate(report.runs):
        reads, writes = (_gains([each.values.get(f"disk.bytes_{way}", 0.0) for each in run.epochs])
                         for way in ("read", "written"))  # fmt: skip
        before = f"{report.letter(number)} " if report.several else ""
        for epoch, (read, written) in enumerate(zip(reads, writes, strict=True)):
            if read or written:
                moved.append([f"{before}{epoch + 1:,}", bytes_text(read), bytes_text(written)])
    if moved:
        blocks.append(Table("Bytes by epoch", ["epoch", "read", "written"], moved, series=True))
    curves, by_epoch = of_epochs(report, "disk.hit_rate")
    table = epoch_table(report, "Hit rate so far, by epoch", by_epoch)
    blocks += line_figure(report, "hits", "Pages in memory when they were needed", curves, table, marks=True)
    return Section("disk", "Disk", (), blocks)


def _gains(totals: Sequence[float]) -> list[float]:
    """What each epoch adds to a total; a run that was resumed counts from 0 again."""
    found, before = [], 0.0
    for now in totals:
        found.append(now - before if now >= before else now)
        before = now
    return found
