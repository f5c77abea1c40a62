"""Evaluation with negatives that come with the graph, by the rules of the Open Graph Benchmark's evaluator (Hu et al.,
"Open Graph Benchmark", NeurIPS 2020, section 5; https://ogb.stanford.edu/docs/linkprop).

- `mrr`: each end of an edge for which there are negatives is ranked among them. Its rank is the mean of the optimistic
  and the pessimistic one. No answer is left out, though it may be an edge of the graph.
- `hits@K`: the share of edges with a score above the K-th best of the negative pairs; a tie is no hit. With fewer than
  K pairs all are hits. A pair is scored as it stands, head first, and once.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from marius_oac.data.graphs.given import MRR, GivenNegatives
from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation.own_metrics import Metric
from marius_oac.evaluation.ranks import NO_METRICS, RankingMetrics
from marius_oac.evaluation.scores import LinkScorer
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.runtime.progress import Progress
from marius_oac.types import Side, present

HITS = (10, 20, 50, 100)
"""The K of `hits@K` that are reported; a graph's own is among them."""


def evaluate_given(
    scorer: LinkScorer,
    edges: np.ndarray,
    negatives: GivenNegatives,
    places: np.ndarray | None = None,
    memory: int = 256,
    own: Mapping[str, Metric] = NO_METRICS,
    among: Sharing = UNSHARED,
) -> dict[str, float] | None:
    """Metrics by OGB's names. Returns None on all but the leading one of several processes.

    Args:
        edges: int32 or int64 [E, 3] or [E, 2]: all of the split, or those of `places`.
        places: of these edges in the split, int64 [E], for which the negatives are taken; None: they are all of it.
        memory: MiB to use, besides some 16 bytes an edge, and 4 a pair of `hits@K`.
        own: the user's metrics of ranks by name; only with `mrr`.
        among: the processes that evaluate the same edges together.

    Returns:
        `mrr`, `mean_rank`, `hits@1`, `hits@3`, `hits@10`, and, where both ends are ranked, those of `heads.` and
        `tails.`; or `hits@10`, `hits@20`, `hits@50`, `hits@100`; `edges` and `seconds`.

    Raises:
        InputError: there are no edges, or an id of a negative is out of range.
        MariusOacError: a score is NaN.
    """
    started = time.perf_counter()
    if not len(edges):
        raise InputError("there are no edges to evaluate")
    if negatives.metric == MRR:
        found = given_ranks(scorer, edges, negatives, places, memory, among)
        if among.rank:
            return None
        values = _of_ranks(found, negatives, own)
    else:
        nodes, pairs = scorer.entities.num_rows, present(negatives.pairs)
        positive, negative = (
            _pair_scores(scorer, what, take, count, memory, among)
            for what, take, count in (
                ("scoring edges", lambda part: edges[part].astype(np.int64), len(edges)),
                ("scoring negatives", lambda part: negatives.checked(None, part, nodes), len(pairs)),
            )
        )
        if among.rank:
            return None
        values = {f"hits@{k}": hits_at(k, positive, negative) for k in HITS}
    return {**values, "edges": len(edges), "seconds": time.perf_counter() - started}


def hits_at(k: int, positive: np.ndarray, negative: np.ndarray) -> float:
    """The share of positive scores, float32 [E], above the k-th best of the negative ones, float32 [n]."""
    if len(negative) < k:
        return 1.0
    bound = np.partition(negative, len(negative) - k)[len(negative) - k]
    return float(np.mean(positive > bound))


def given_ranks(
    scorer: LinkScorer,
    edges: np.ndarray,
    negatives: GivenNegatives,
    places: np.ndarray | None = None,
    memory: int = 256,
    among: Sharing = UNSHARED,
) -> dict[Side, np.ndarray]:
    """Twice the ranks among the negatives, int64 [E], by side; they are complete on the leading process. Raises as
    `evaluate_given`."""
    share, found = among.share(len(edges)), dict[Side, np.ndarray]()
    scores = sum(len(share) * (1 + table.shape[1]) for table in negatives.sides.values())
    with torch.inference_mode(), Progress("ranking", "scores", scores, shown=among.rank == 0) as progress:
        for side, table in negatives.sides.items():
            step, mine = _edges_at_once(scorer, 1 + table.shape[1], memory), np.empty(len(share), np.int64)
            for first in range(share.start, share.stop, step):
                part = slice(first, min(first + step, share.stop))
                rows = part if places is None else places[part]
                mine[first - share.start : part.stop - share.start] = _ranks(
                    scorer, edges[part].astype(np.int64), negatives.checked(side, rows, scorer.entities.num_rows), side
                )
                progress.add((part.stop - first) * (1 + table.shape[1]))
                among.turn()
            found[side] = _all_of(mine, len(edges), among)
    return found


def _ranks(scorer: LinkScorer, edges: np.ndarray, negatives: np.ndarray, side: Side) -> np.ndarray:
    """Twice the ranks of the ends on this side, int64 [n], among the negatives, int64 [n, K]."""
    given, asked = (0, -1) if side is Side.TAIL else (-1, 0)
    candidates = np.concatenate([edges[:, asked, None], negatives], 1)
    scores = _checked(scorer.among(edges[:, given], edges[:, 1], side, candidates))
    true, others = scores[:, :1], scores[:, 1:]
    return (others > true).sum(1) + (others >= true).sum(1) + 2


def _pair_scores(
    scorer: LinkScorer, what: str, pairs: Callable[[slice], np.ndarray], count: int, memory: int, among: Sharing
) -> np.ndarray:
    """Scores of `count` pairs of head and tail, of which `pairs` returns some, int64 [n, 2]: float32 [count], complete
    on the leading process."""
    share, step = among.share(count), _edges_at_once(scorer, 1, memory)
    mine = np.empty(len(share), np.float32)
    with torch.inference_mode(), Progress(what, "scores", len(share), shown=among.rank == 0) as progress:
        for first in range(share.start, share.stop, step):
            part = slice(first, min(first + step, share.stop))
            found = pairs(part)
            scores = _checked(scorer.among(found[:, 0], None, Side.TAIL, found[:, 1:]))
            mine[first - share.start : part.stop - share.start] = scores[:, 0]
            progress.add(len(found))
            among.turn()
    return _all_of(mine, count, among)


def _edges_at_once(scorer: LinkScorer, candidates: int, memory: int) -> int:
    """Edges whose scores with so many candidates each take half of `memory` MiB."""
    return max(1, (memory << 19) // (candidates * _bytes_each(scorer.entities.dimension)))


def _bytes_each(dimension: int) -> int:
    """Of a candidate: its embedding as it is read, and in torch a copy; its ids, sorted and not, and its score."""
    return 12 * dimension + 64


def needed_bytes(dimension: int, negatives: GivenNegatives, edges: int, memory: int) -> int:
    """What the evaluation of so many edges takes; see `evaluate_given`."""
    if negatives.pairs is not None:
        count, candidates = max(edges, len(negatives.pairs)), 1
    else:
        count, candidates = edges, 1 + max(table.shape[1] for table in negatives.sides.values())
    each = candidates * _bytes_each(dimension)
    kept = 16 * edges if negatives.pairs is None else 4 * (edges + len(negatives.pairs))
    return min(max(each, memory << 19), count * each) + kept


def _checked(scores: np.ndarray) -> np.ndarray:
    if np.isnan(scores).any():
        raise MariusOacError("a score is NaN: the embeddings hold NaN, or are so large that their products overflow")
    return scores


def _all_of(mine: np.ndarray, count: int, among: Sharing) -> np.ndarray:
    """What all processes have found, on the leading one. Collective."""
    if among.count == 1:
        return mine
    found = among.collected(io.BytesIO(mine.tobytes()), count * mine.itemsize)
    return mine if among.rank else np.frombuffer(found.read(), mine.dtype)


def _of_ranks(
    doubled: Mapping[Side, np.ndarray], negatives: GivenNegatives, own: Mapping[str, Metric]
) -> dict[str, float]:
    values: dict[str, float] = {}
    parts = {"": np.concatenate(list(doubled.values()))}
    if len(doubled) > 1:
        parts |= {"heads": doubled[Side.HEAD], "tails": doubled[Side.TAIL]}
    for part, ranks in parts.items():
        candidates = 1 + negatives.sides[Side.TAIL].shape[1]
        named = RankingMetrics.of(ranks, False, candidates, own=own).as_dict(part)
        values |= {name.removeprefix("unfiltered."): value for name, value in named.items()}
    return values
