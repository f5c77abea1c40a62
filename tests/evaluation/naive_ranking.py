"""Ranking as one would define it, with Python loops: the oracle of `evaluate` and `predict`."""

import math

import numpy as np

from marius_oac.types import Side


def score(decoder: str, norm: int, head, relation, tail) -> float:
    """The score of an edge, in double precision, from its embeddings (`relation` is None for dot)."""
    head, tail = np.asarray(head, np.float64), np.asarray(tail, np.float64)
    half = len(head) // 2
    if decoder == "dot":
        return float(sum(head * tail))
    relation = np.asarray(relation, np.float64)
    if decoder == "distmult":
        return float(sum(head * relation * tail))
    if decoder == "transe":
        return -float(sum(abs(head + relation - tail) ** norm) ** (1 / norm))
    h, t = head[:half] + 1j * head[half:], tail[:half] + 1j * tail[half:]
    if decoder == "complex":
        r = relation[:half] + 1j * relation[half:]
        return float(sum(h * r * t.conj()).real)
    return -float(sum(abs(h * np.exp(1j * relation) - t)))


def question(edge, side: Side):
    """What stays when the end on `side` is asked for."""
    return (side, *edge[:-1]) if side is Side.TAIL else (side, *edge[1:])


def answer(edge, side: Side) -> int:
    return edge[-1] if side is Side.TAIL else edge[0]


def edge_score(scorer, edge, side: Side, candidate: int) -> float:
    """The score of `edge` with `candidate` at the end on `side`."""
    values = scorer.entities.read(np.arange(scorer.entities.num_rows))
    head, tail = (edge[0], candidate) if side is Side.TAIL else (candidate, edge[-1])
    model, relation = scorer.model, None
    if model.decoder != "dot":
        relation = edge[1]
        if model.reciprocal and side is Side.HEAD:
            # Asked the other way round.
            head, tail, relation = tail, head, relation + len(scorer.relations) // 2
        relation = scorer.relations[relation].numpy()
    return score(model.decoder, model.norm, values[head], relation, values[tail])


def rank(scorer, edge, side: Side, candidates, left_out) -> float:
    """The realistic rank of the edge's own answer among `candidates` but for those `left_out`."""
    own = answer(edge, side)
    true = edge_score(scorer, edge, side, own)
    others = [c for c in candidates if c != own and c not in left_out]
    found = [edge_score(scorer, edge, side, candidate) for candidate in others]
    optimistic = 1 + sum(s > true for s in found)
    pessimistic = 1 + sum(s >= true for s in found)
    return (optimistic + pessimistic) / 2


def metrics(scorer, edges, graph_edges, candidates_of, filtered: bool) -> dict[str, float]:
    """What `Evaluation.as_dict` holds of one setting; `candidates_of(number of the edge, side)`."""
    related = scorer.model.decoder != "dot"
    edges, graph_edges = ([tuple(e) if related else (e[0], e[-1]) for e in s.tolist()] for s in (edges, graph_edges))
    known: dict[tuple, set[int]] = {}
    for edge in graph_edges:
        for side in Side:
            known.setdefault(question(edge, side), set()).add(answer(edge, side))
    ranks: dict[str, list[float]] = {"heads.": [], "tails.": []}
    for side in Side:
        for number, edge in enumerate(edges):
            left_out = known.get(question(edge, side), set()) if filtered else set()
            ranks[f"{side.name.lower()}s."].append(rank(scorer, edge, side, candidates_of(number, side), left_out))
    found = {}
    for part, of in (("", ranks["heads."] + ranks["tails."]), *ranks.items()):
        prefix = ("filtered." if filtered else "unfiltered.") + part
        found[f"{prefix}mrr"] = math.fsum(1 / r for r in of) / len(of)
        found[f"{prefix}mean_rank"] = sum(of) / len(of)
        for k in (1, 3, 10):
            found[f"{prefix}hits@{k}"] = sum(r <= k for r in of) / len(of)
    return found
