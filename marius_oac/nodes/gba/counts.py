"""Adds up what shards count of dispatched batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def add_counts(*counts: Mapping[str, float]) -> dict[str, float]:
    """Merges counts by name: the maximum where the name ends in `max`, else the sum."""
    found: dict[str, float] = {}
    for each in counts:
        for name, value in each.items():
            if name not in found:
                found[name] = value
            else:
                found[name] = max(found[name], value) if name.endswith("max") else found[name] + value
    return found


def dispatch_metrics(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics `dealt.*` of dispatched batches from the counts of each process's shard; {} without counts.

    They are tokens, examples, lost batches and trainers, elastic workers and, of dense parameters and of rows, the
    gradients, those dropped, and their mean and largest staleness in global steps.
    """
    if not any(counts):
        return {}
    every = add_counts(*counts)
    found = {f"dealt.{name}": every.get(name, 0) for name in ("tokens", "examples", "batches_lost", "guests")}
    found["dealt.trainers_lost"] = every.get("trainers_lost_max", 0)
    for what in ("dense", "rows"):
        gradients, dropped, total, most = (
            every.get(f"{what}.{name}", 0) for name in ("gradients", "dropped", "staleness_sum", "staleness_max")
        )
        found |= {f"dealt.{what}_gradients": gradients, f"dealt.{what}_dropped": dropped}
        found |= {f"dealt.{what}_staleness": total / max(gradients, 1), f"dealt.{what}_staleness_max": most}
    return found
