"""Ranks of true answers: counts better and equal candidates in blocks of scores, and computes metrics from the counts.

The rank of a true answer is the realistic one, the mean of the optimistic rank (1 + better candidates) and the
pessimistic rank (1 + better or equal ones); see Berrendorf et al., "On the ambiguity of rank-based evaluation of entity
alignment or link prediction methods", 2020. We store twice the rank, 2 better + equal + 2, which is an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from marius_oac.evaluation.filters import Answers
from marius_oac.kernels.cpu.ranks import (
    BETTER,
    EQUAL,
    KNOWN_BETTER,
    KNOWN_EQUAL,
    NAN,
    Columns,
    find_among,
    find_in_range,
)

HITS = (1, 3, 10)
NO_METRICS: Mapping[str, Any] = MappingProxyType({})

Candidates = range | np.ndarray
"""Ids of the candidates of a block: consecutive entities, or drawn ones, int64 [m], ascending, perhaps repeated."""


@dataclass(frozen=True)
class RankingMetrics:
    """Link prediction's metrics over `count` ranked answers.

    Attributes:
        mrr: mean reciprocal rank.
        mean_rank: mean rank, from 1.
        hits: for each k, the fraction of answers whose rank is at most k.
        count: the number of ranked answers.
        filtered: whether other known answers were left out of the ranking.
        candidates: the number of candidates of each ranking: all entities, or those drawn.
        own: the user's metrics by name.
    """

    mrr: float
    mean_rank: float
    hits: dict[int, float]
    count: int
    filtered: bool
    candidates: int
    own: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        doubled_ranks: np.ndarray,
        filtered: bool,
        candidates: int,
        hits: Sequence[int] = HITS,
        own: Mapping[str, Callable[[np.ndarray], float]] = NO_METRICS,
    ) -> RankingMetrics:
        """The metrics of doubled ranks, int64 [count], count >= 1; `own` are called with the ranks, float64 [count]."""
        ranks = doubled_ranks * 0.5
        at = {k: float(np.mean(ranks <= k)) for k in hits}
        mrr, mean_rank = float(np.mean(1.0 / ranks)), float(np.mean(ranks))
        measured = {name: metric(ranks) for name, metric in own.items()}
        return cls(mrr, mean_rank, at, len(ranks), filtered, candidates, measured)

    def as_dict(self, part: str = "") -> dict[str, float]:
        """Metrics by name, such as `filtered.mrr` and `filtered.hits@10`; with `part` "heads" `filtered.heads.mrr`."""
        prefix = ("filtered." if self.filtered else "unfiltered.") + (f"{part}." if part else "")
        hits = {f"{prefix}hits@{k}": share for k, share in self.hits.items()}
        own = {f"{prefix}{name}": value for name, value in self.own.items()}
        return {f"{prefix}mrr": self.mrr, f"{prefix}mean_rank": self.mean_rank, **hits, **own}


@dataclass(frozen=True)
class SideMetrics:
    """The metrics of all answers, and of each side. Heads are the answers of (?, relation, tail)."""

    both: RankingMetrics
    heads: RankingMetrics
    tails: RankingMetrics

    def as_dict(self) -> dict[str, float]:
        """All metrics by name, see `RankingMetrics.as_dict`."""
        return {**self.both.as_dict(), **self.heads.as_dict("heads"), **self.tails.as_dict("tails")}


def doubled_ranks(counts: np.ndarray, filtered: bool) -> np.ndarray:
    """Twice the realistic ranks, int64 [n], of counts, int64 [5, n]."""
    better, equal = counts[BETTER], counts[EQUAL]
    if filtered:
        better, equal = better - counts[KNOWN_BETTER], equal - counts[KNOWN_EQUAL]
    return 2 * better + equal + 2


def own_columns(targets: np.ndarray, candidates: Candidates) -> Columns:
    """The columns of the targets, int64 [n], among the candidates."""
    none = np.full(len(targets), -1)
    if isinstance(candidates, range):
        first, inside = np.arange(len(targets)), (targets >= candidates.start) & (targets < candidates.stop)
        return Columns(first, first + inside, targets, candidates.start, none)
    first, last = np.searchsorted(candidates, targets, "left"), np.searchsorted(candidates, targets, "right")
    return Columns(first, last, np.arange(len(candidates)), 0, none)


def known_columns(answers: Answers | None, queries: np.ndarray, candidates: Candidates) -> Columns:
    """The columns of the known answers of queries, int64 [n], except each query's own, among the candidates."""
    none = no_columns(len(queries))
    if answers is None:
        return none
    if isinstance(candidates, range):
        known = (answers.groups, answers.offsets, answers.ids, queries)
        find_in_range(*known, candidates.start, candidates.stop, none.first, none.last)
        return Columns(none.first, none.last, answers.ids, candidates.start, answers.own[queries])
    offsets = np.zeros(len(queries) + 1, np.int64)
    given = (answers.groups, answers.own, answers.offsets, answers.ids, queries, candidates)
    find_among(*given, none.values, offsets)  # how many
    columns = np.empty(offsets[-1], np.int64)
    find_among(*given, columns, offsets)
    return Columns(offsets[:-1].copy(), offsets[1:], columns, 0, none.but)


def no_columns(count: int) -> Columns:
    """Of so many queries none."""
    first, last = np.zeros((2, count), np.int64)
    return Columns(first, last, np.empty(0, np.int64), 0, np.full(count, -1))


def count_on_device(
    scores: torch.Tensor, true: torch.Tensor, counts: torch.Tensor, own: Columns, known: Columns, width: int
) -> None:
    """The same as the kernel `count_scores`; `scores`, `true` and `counts` are tensors on the same device."""
    scores, answers = scores[: len(true), :width], true[:, None]
    better, equal = scores > answers, scores == answers
    counts[BETTER] += better.sum(1) - _sums_at(better, own)
    counts[EQUAL] += equal.sum(1) - _sums_at(equal, own)
    counts[KNOWN_BETTER] += _sums_at(better, known)
    counts[KNOWN_EQUAL] += _sums_at(equal, known)
    counts[NAN] += scores.isnan().sum(1) + true.isnan()


def _sums_at(flags: torch.Tensor, places: Columns) -> torch.Tensor:
    """For each row of `flags`, bool [n, width], how many of its columns are true, int64 [n]."""
    sizes = places.last - places.first
    rows = np.repeat(np.arange(len(flags)), sizes)
    values = places.values[np.arange(sizes.sum()) + np.repeat(places.last - np.cumsum(sizes), sizes)]
    kept = values != places.but[rows]
    indices = rows[kept], values[kept] - places.shift
    row, column = (torch.from_numpy(index).to(flags.device) for index in indices)
    sums = torch.zeros(len(flags), dtype=torch.int64, device=flags.device)
    return sums.index_add_(0, row, flags[row, column].long())
