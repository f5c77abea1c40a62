"""How well a model does on parts of the data, and what its embeddings look like: numbers for a report's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.kernels.cpu.permutation import Permutation
from marius_oac.storage.snapshots import RowArray

MOST_EDGES = 10_000
"""Of a split that are ranked."""
MOST_EXAMPLES = 1_000_000
"""Of click logs that are predicted, the first ones."""
MOST_POINTS = 2_000
"""Rows of a table that are drawn."""
BINS = 20


@dataclass(frozen=True)
class Group:
    """The answers of a part of the edges: how many, and their mean reciprocal rank."""

    name: str
    count: int
    mrr: float


@dataclass(frozen=True)
class Bin:
    """Examples with neighbouring predictions: how many, their mean prediction, and which part of them are clicks."""

    count: int
    predicted: float
    clicked: float


@dataclass(frozen=True)
class Plane:
    """Rows of a table on its two principal components.

    Attributes:
        points: float64 [n, 2].
        shares: of the variance, on either component.
        rows: of the table, of which these are a sample.
    """

    points: np.ndarray
    shares: tuple[float, float]
    rows: int


@dataclass(frozen=True)
class Quality:
    """What a trained model was measured on (a split, and how many of its edges or examples), and what was found."""

    split: str
    measured: int
    relations: Sequence[Group] = ()
    degrees: Sequence[Group] = ()
    bins: Sequence[Bin] = ()
    plane: Plane | None = None


def by_relation(ranks: np.ndarray, relations: np.ndarray, names: Callable[[np.ndarray], Sequence[str]]) -> list[Group]:
    """The MRR of each relation, those with the most answers first.

    Args:
        ranks: of heads and tails, or of one of these, float64 [1 or 2, E].
        relations: of the edges, int [E].
        names: of relations, by their ids.
    """
    found, groups = np.unique(relations, return_inverse=True)
    counts, means = _means(ranks, np.broadcast_to(groups, ranks.shape), len(found))
    order = np.argsort(-counts, kind="stable")
    called = names(found[order])
    return [Group(name, int(counts[at]), float(means[at])) for name, at in zip(called, order, strict=True)]


def by_degree(ranks: np.ndarray, answers: np.ndarray, degrees: np.ndarray) -> list[Group]:
    """The MRR of answers by how many training edges they have: 0, 1, 2-3, 4-7 and so on.

    Args:
        ranks, answers: of heads and tails, or of one of these, float64 and int [1 or 2, E].
        degrees: of all entities, int64 [N].
    """
    groups = np.frexp(degrees[answers].astype(np.float64))[1]  # 0: 0; 1: 1; 2 and 3: 2; 4 to 7: 3
    counts, means = _means(ranks, groups, int(groups.max(initial=0)) + 1)
    return [
        Group(_range(group), int(counts[group]), float(means[group])) for group in range(len(counts)) if counts[group]
    ]


def _range(group: int) -> str:
    low, high = (1 << group) >> 1, (1 << group) - 1
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _means(ranks: np.ndarray, groups: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each group the number of answers, int64 [count], and the mean reciprocal rank, float64 [count]."""
    counts = np.bincount(groups.ravel(), minlength=count)
    sums = np.bincount(groups.ravel(), (1 / ranks).ravel(), minlength=count)
    return counts, sums / np.maximum(counts, 1)


def degrees_of(edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """How many edges, int [E, 2 or 3], each node has at either end, int64 [N]."""
    return sum(
        (np.bincount(edges[:, column], minlength=num_nodes) for column in (0, -1)), np.zeros(num_nodes, np.int64)
    )


def calibration(labels: np.ndarray, probabilities: np.ndarray) -> list[Bin]:
    """Examples, float32 [n] each, in at most `BINS` bins of as many neighbouring predictions."""
    order = np.argsort(probabilities, kind="stable")
    parts = np.array_split(order, min(BINS, len(order))) if len(order) else []
    return [
        Bin(len(part), float(probabilities[part].mean(dtype=np.float64)), float(labels[part].mean(dtype=np.float64)))
        for part in parts
    ]


def sample(count: int, most: int, seed: int) -> np.ndarray:
    """At most so many of `count` places, ascending, int64 [n], drawn by the seed."""
    if count <= most:
        return np.arange(count)
    return np.sort(Permutation(count, seed, 0, "quality").permute(np.arange(most)))


def plane(table: RowArray, seed: int) -> Plane | None:
    """Rows of a table, float32 [N, D], on the two directions in which a sample of them varies most (principal component
    analysis); None where there are fewer than three, or they don't vary."""
    rows = np.asarray(table[sample(len(table), MOST_POINTS, seed)], np.float64)
    if len(rows) < 3 or rows.ndim != 2 or rows.shape[1] < 2 or not np.isfinite(rows).all():
        return None
    centred = rows - rows.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    variances = sizes**2
    if not variances[0] > 0:
        return None
    axes = axes[:2] * np.sign(np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(axis=1)[:, None], axis=1))
    first, second = (variances[:2] / variances.sum()).tolist()
    return Plane(centred @ axes.T, (first, second), len(table))
