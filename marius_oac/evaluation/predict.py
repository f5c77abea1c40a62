"""Predicts the most likely tails of (head, relation, ?), or heads of (?, relation, tail), by name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from marius_oac.data.graphs.graph import Graph
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation.blocks import Blocks
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.scores import LinkScorer
from marius_oac.runtime.progress import Progress
from marius_oac.types import Side, present

NOBODY = -1  # the id of no entity


class Prediction(NamedTuple):
    """An entity that may complete the edge, and the model's score of that edge."""

    name: str
    score: float


def predict(
    scorer: LinkScorer,
    graph: Graph,
    head: str | None = None,
    relation: str | None = None,
    tail: str | None = None,
    top: int = 10,
    filtered: bool = False,
    memory: int = 256,
) -> list[Prediction]:
    """The `top` entities that best complete an edge, best first. Equal scores are ordered by id.

    Args:
        head: a name, to predict tails.
        relation: a name if the model uses relations, else None.
        tail: a name, to predict heads.
        top: the number of entities.
        filtered: leave out answers that are in the graph, in any split.
        memory: MiB to use.

    Raises:
        InputError: a name is unknown; none or both of head and tail are given; a relation is missing or needless; `top`
            is below 1.
        MariusOacError: a score is NaN.
    """
    if (head is None) == (tail is None):
        raise InputError("give either a head or a tail; the other one is predicted", "predict")
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}", "predict")
    related = scorer.decoder.uses_relations
    if related and relation is None:
        raise InputError("this model needs a relation", "predict")
    if not related and relation is not None:
        raise InputError("this model uses no relations: leave the relation out", "predict")
    side, given = (Side.TAIL, present(head)) if tail is None else (Side.HEAD, tail)
    node = graph.node_ids([given])
    relations = None if relation is None else graph.relation_ids([relation])
    excluded = _known(graph, node, relations, side) if filtered else np.empty(0, np.int64)
    blocks = Blocks.fit(scorer, scorer.entities.num_rows, memory)
    with (
        torch.inference_mode(),
        scorer.threads(),
        Progress("scoring", "entities", scorer.entities.num_rows) as progress,
    ):
        query = scorer.queries(node, relations, side)
        ids, scores = _best(scorer, query, blocks, top, excluded, progress)
    return [Prediction(*pair) for pair in zip(graph.node_names(ids), scores.tolist(), strict=True)]


def _known(graph: Graph, node: np.ndarray, relations: np.ndarray | None, side: Side) -> np.ndarray:
    """The ids of all answers in the graph, int64 [n], ascending."""
    ends = [node[0], NOBODY] if side is Side.TAIL else [NOBODY, node[0]]
    query = np.array([ends if relations is None else [ends[0], relations[0], ends[1]]])
    edges = (graph.edges(split) for split in SPLITS)
    return KnownAnswers.build(edges, query, 0 if relations is None else graph.num_relations).others(side)[1]


def _best(
    scorer: LinkScorer, query: torch.Tensor, blocks: Blocks, top: int, excluded: np.ndarray, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """The ids, int64 [n], and scores, float32 [n], of the best entities, in order, without `excluded`, int64 [m]."""
    ids, scores = np.empty(0, np.int64), np.empty(0, np.float32)
    num_rows = scorer.entities.num_rows
    for first in range(0, num_rows, blocks.block):
        block = range(first, min(first + blocks.block, num_rows))
        found = scorer.scores(query, scorer.vectors(block))[0, : len(block)]
        if found.isnan().any():
            raise MariusOacError(
                "a score is NaN: the embeddings hold NaN, or are so large that their products overflow"
            )
        low, high = np.searchsorted(excluded, (block.start, block.stop))
        kept = np.delete(np.arange(block.start, block.stop), excluded[low:high] - block.start)
        found = found[torch.from_numpy(kept - block.start).to(found.device)]
        best = _top(found, top).cpu().numpy()
        ids = np.concatenate((ids, kept[best]))
        scores = np.concatenate((scores, found.cpu().numpy()[best]))
        order = np.lexsort((ids, -scores))[:top]
        ids, scores = ids[order], scores[order]
        progress.add(len(block))
    return ids, scores


def _top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the `count` largest scores, int64; of ties the first, while `torch.topk` may choose any. Scores
    are float32 [n]."""
    if len(scores) <= count:
        return torch.arange(len(scores), device=scores.device)
    least = torch.topk(scores, count).values[-1]
    larger = torch.nonzero(scores > least)[:, 0]
    return torch.cat((larger, torch.nonzero(scores == least)[: count - len(larger), 0]))
