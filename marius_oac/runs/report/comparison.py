"""Two runs beside each other: in which keys their configurations differ, and whether they have the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marius_oac.errors import shown
from marius_oac.runs.folder.about import differences
from marius_oac.runs.report.history import History, Interval

_MISSING = object()


def config_differences(runs: Sequence[History]) -> list[tuple[str, list[str]]]:
    """The keys that not all runs have the same value of, each with the value of every run as text."""
    trees = [run.config.model_dump(mode="json") for run in runs]
    keys = {key: None for tree in trees[1:] for key, *_ in differences(trees[0], tree)}
    return [(key, [_told(_at(tree, key)) for tree in trees]) for key in keys]


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        if isinstance(tree, list):
            tree = tree[int(part)] if part.isdigit() and int(part) < len(tree) else _MISSING
        else:
            tree = tree.get(part, _MISSING) if isinstance(tree, dict) else _MISSING
    return tree


def _told(value: Any) -> str:
    return "" if value is _MISSING else value if isinstance(value, str) and value else shown(value)


def bits(first: History, second: History) -> str:
    """Whether two runs have the same bits, in a sentence; if not, where their losses part.

    A loss is that of the same batches in both runs, and exact, so it differs as soon as a bit of it does. Rows may
    differ before it shows there.
    """
    same = _tables(first) == _tables(second)
    if _tables(first) and _tables(second) and same:
        return "the same bits: the checksums of all their tables and dense parameters are equal"
    parted = _parting(first, second)
    if parted:
        return parted
    if not (_tables(first) and _tables(second)):
        return "the same losses so far; whether the rows have the same bits is known once both have ended"
    if first.batches != second.batches:
        return (
            f"the same losses as long as both trained: one has {first.batches:,} batches, the other {second.batches:,}"
        )
    return "different bits, though no loss differs: the checksums of their tables are not equal"


def _tables(run: History) -> dict[str, str]:
    return {name: str(value) for name, value in run.summary.items() if name.startswith("tables.") and "sha256" in name}


def _parting(first: History, second: History) -> str | None:
    ours, theirs = _losses(first.intervals), _losses(second.intervals)
    both = [each for each in ours if each in theirs]
    if not both:
        ours, theirs = (_losses([each.totals for each in run.epochs]) for run in (first, second))
        both = [each for each in ours if each in theirs]
    before = None
    for epoch, batch in both:
        if ours[epoch, batch] != theirs[epoch, batch]:
            since = (
                "from the first batches on"
                if before is None
                else f"after batch {before + 1:,}, where both losses are equal"
            )
            return f"different bits: they part in epoch {epoch + 1}, {since}; the losses differ at batch {batch + 1:,}"
        before = batch
    return None if both else "nothing to compare: no two of their losses are of the same batches"


def _losses(lines: Sequence[Interval]) -> dict[tuple[int, int], float | None]:
    return {(line.epoch, line.batch): line.loss for line in lines}
