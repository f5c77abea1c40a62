"""OGB's evaluator as its documentation tells it (https://ogb.stanford.edu/docs/linkprop), with Python loops."""

import math


def mrr(positive, negative) -> float:
    """Each positive is ranked among its own negatives, between the best and the worst place that ties leave it."""
    found = []
    for true, others in zip(positive, negative, strict=True):
        best = 1 + sum(other > true for other in others)
        worst = 1 + sum(other >= true for other in others)
        found.append(2 / (best + worst))
    return math.fsum(found) / len(found)


def hits(k: int, positive, negative) -> float:
    """ "We rank each positive edge against the negative edges, and count the ratio of positive edges that are ranked at
    K-th place or above": a negative with the same score is placed before it."""
    return sum(1 + sum(other >= true for other in negative) <= k for true in positive) / len(positive)
