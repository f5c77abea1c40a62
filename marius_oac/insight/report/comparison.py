"""Runs beside each other: the keys of their configurations, and whether they have the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marius_oac.insight.report.history import History, Interval


def config_differences(runs: Sequence[History]) -> list[list[str]]:
    """Of each key that not all runs have the same value of: the key, and the value of every run as text."""
    return [row for row in config_rows(runs) if len(set(row[1:])) > 1]


def config_rows(runs: Sequence[History]) -> list[list[str]]:
    """Of each key of the configurations: the key, and the value of every run as text."""
    found = [_flat(run.config.model_dump(mode="json")) for run in runs]
    keys = list(dict.fromkeys(key for each in found for key in each))
    return [[key, *(each.get(key, "") for each in found)] for key in keys]


def _flat(config: Any) -> dict[str, str]:
    """The keys of a configuration, given as plain values, with their values as texts."""
    found: dict[str, str] = {}

    def walk(tree: Any, path: str) -> None:
        if isinstance(tree, dict) and tree:
            for key, value in tree.items():
                walk(value, f"{path}.{key}" if path else str(key))
        elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
            for place, value in enumerate(tree):
                walk(value, f"{path}.{place}")
        else:
            found[path] = "null" if tree is None else str(tree).lower() if isinstance(tree, bool) else str(tree)

    walk(config, "")
    return found


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
        ours, theirs = (_losses(run.epochs) for run in (first, second))
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
