"""The identity of a run's data as one string: the graph's fingerprint and those of files that belong to it, by
configuration key."""

from __future__ import annotations

from collections.abc import Mapping

GRAPH, ORDER = "data.path", "pipeline.order"


def joined(graph: str, others: Mapping[str, str]) -> str:
    """The graph's fingerprint, followed by the others with their keys."""
    return "-".join([graph, *(f"{key}={fingerprint}" for key, fingerprint in others.items())])


def parted(text: str) -> dict[str, str]:
    """The fingerprints in a string of `joined` by key, the graph's first."""
    graph, *others = text.split("-")
    return {GRAPH: graph, **dict(one.split("=") for one in others)}
