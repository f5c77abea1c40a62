"""What a run's data are, in one text: the graph's fingerprint and those of what belongs to it, by configuration key."""

from __future__ import annotations

from collections.abc import Mapping

GRAPH, ORDER = "data.path", "pipeline.order"


def joined(graph: str, others: Mapping[str, str]) -> str:
    """The graph's fingerprint, and behind it the others."""
    return "-".join([graph, *(f"{key}={fingerprint}" for key, fingerprint in others.items())])


def parted(text: str) -> dict[str, str]:
    """The fingerprints of a `joined` text by key, the graph's first."""
    graph, *others = text.split("-")
    return {GRAPH: graph, **dict(one.split("=") for one in others)}
