"""Losses as kernels: they turn a tile of scores, in place, into the gradient of the loss by the scores.

The formulas are those of `losses`. A score of -inf is no negative; its gradient becomes 0.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu.jit import float_inlined
from marius_oac.kernels.cpu.sums import BLOCK, floats, total
from marius_oac.kernels.cpu.vector_math import bits_of, exp, float_of, sigmoid, softplus

SOFTMAX, LOGISTIC, MARGIN, SELF_ADVERSARIAL = range(4)

_ZERO, _ONE = np.float32(0), np.float32(1)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN_SHIFT = np.int32(31)


class LossRule(NamedTuple):
    """`scale` is the weight of an edge's loss in the batch's, `share` that of a negative in an edge's mean."""

    code: int
    scale: np.float32
    share: np.float32
    margin: np.float32
    temperature: np.float32


@float_inlined
def _ordered(value):
    """An int32 in the order of the floats, and back again; NaN lies at the ends. Maxima of integers vectorise."""
    bits = bits_of(value)
    return np.int32(bits ^ ((bits >> _SIGN_SHIFT) & _MAGNITUDE))


@float_inlined
def _largest(scores, first):
    largest = _ordered(first)
    for j in range(scores.size):
        largest = max(largest, _ordered(scores[j]))
    return float_of(np.int32(largest ^ ((largest >> _SIGN_SHIFT) & _MAGNITUDE)))


@float_inlined
def _softmax(scores, positive, rule):
    largest = _largest(scores, positive)
    for j in range(scores.size):
        scores[j] = exp(scores[j] - largest)
    others = total(scores)
    every = others + exp(positive - largest)
    factor = rule.scale / every
    for j in range(scores.size):
        scores[j] *= factor
    loss = np.log(np.float64(every)) + (np.float64(largest) - np.float64(positive))
    # 1 - p of the positive as a sum of the others', which loses no digits where p is nearly 1.
    return loss, -factor * others


@float_inlined
def _logistic(scores, positive, rule):
    factor = rule.scale * rule.share
    terms, loss = floats(), np.float64(0)
    for begin in range(0, scores.size, BLOCK):
        part = scores[begin : begin + BLOCK]
        for j in range(part.size):
            terms[j] = softplus(part[j])
            part[j] = factor * sigmoid(part[j])
        loss += total(terms[: part.size])
    loss = np.float64(softplus(-positive)) + loss * np.float64(rule.share)
    return loss, -rule.scale * sigmoid(-positive)


@float_inlined
def _margin(scores, positive, rule):
    factor = rule.scale * rule.share
    terms, loss = floats(), np.float64(0)
    for begin in range(0, scores.size, BLOCK):
        part = scores[begin : begin + BLOCK]
        for j in range(part.size):
            excess = part[j] - positive + rule.margin
            # The order of the comparison lets NaN through to the loss.
            terms[j] = _ZERO if excess <= _ZERO else excess
            part[j] = factor if excess > _ZERO else _ZERO
        loss += total(terms[: part.size])
    return loss * np.float64(rule.share), -total(scores)


@float_inlined
def _self_adversarial(scores, positive, rule):
    largest = _largest(scores, scores[0])
    weights, terms, sum_of_weights, loss = floats(), floats(), _ZERO, np.float64(0)
    for begin in range(0, scores.size, BLOCK):
        part = scores[begin : begin + BLOCK]
        for j in range(part.size):
            # -inf is excluded explicitly: all scores may be -inf (with one entity), and then the largest is -inf too.
            out = part[j] == -np.inf
            weight = _ZERO if out else exp(rule.temperature * (part[j] - largest))
            excess = part[j] + rule.margin
            weights[j] = weight
            terms[j] = _ZERO if out else weight * softplus(excess)
            part[j] = _ZERO if out else weight * sigmoid(excess)
        sum_of_weights += total(weights[: part.size])
        loss += total(terms[: part.size])
    # A NaN is not larger than zero, and must be seen.
    inverse = _ZERO if sum_of_weights == _ZERO else _ONE / sum_of_weights
    for j in range(scores.size):
        scores[j] *= rule.scale * inverse
    own = -(positive + rule.margin)
    loss = np.float64(softplus(own)) + loss * np.float64(inverse)
    return loss, -rule.scale * sigmoid(own)


@float_inlined
def differentiate(rule, scores, positives, losses):
    """Losses of a tile of edges.

    Args:
        scores: float32 [R, K] of the negatives; becomes the gradient by them, times `rule.scale`.
        positives: float32 [R]; becomes the gradient by it, likewise.
        losses: float64 [R], the edges' losses, not scaled.
    """
    for i in range(scores.shape[0]):
        if rule.code == SOFTMAX:
            losses[i], positives[i] = _softmax(scores[i], positives[i], rule)
        elif rule.code == LOGISTIC:
            losses[i], positives[i] = _logistic(scores[i], positives[i], rule)
        elif rule.code == MARGIN:
            losses[i], positives[i] = _margin(scores[i], positives[i], rule)
        else:
            losses[i], positives[i] = _self_adversarial(scores[i], positives[i], rule)
