"""Losses of tiles of scores, one tile of candidates after the other; formulas in `models.link_prediction.losses`.

A row of a tile is a query with its positive score p. Three numbers a row are carried along: `largest`, `weight` and
`total`. When all tiles are seen, `finished` gives the loss, and two numbers with which `coefficients` turns the same
scores, computed again, into the gradient by them.

| loss | largest | weight | total |
|---|---|---|---|
| softmax | of all scores so far, p too | sum of e^(n - largest) | |
| logistic | | | sum of softplus(n) |
| margin | | negatives within the margin | sum of what they exceed it by |
| self_adversarial | of the negatives so far | sum of e^(t (n - largest)) | sum of these times softplus(n + margin) |

`keep` says which candidates count. A NaN that counts reaches the loss.
"""

import triton.language as tl

from marius_oac.kernels.cpu import losses as cpu
from marius_oac.kernels.gpu.jit import inlined

SOFTMAX = tl.constexpr(cpu.SOFTMAX)
LOGISTIC = tl.constexpr(cpu.LOGISTIC)
MARGIN = tl.constexpr(cpu.MARGIN)


@inlined
def softplus(x):
    """log(1 + e^x), with all digits of a small e^x."""
    e = tl.exp(-tl.abs(x))
    one_and_e = 1.0 + e
    return tl.maximum(x, 0.0) + (tl.log(one_and_e) + (e - (one_and_e - 1.0)) / one_and_e)


@inlined
def sigmoid(x):
    """1 / (1 + e^-x), without an overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, e) / (1.0 + e)


@inlined
def begun(positive, LOSS: tl.constexpr):
    """What is carried before the first tile, each [rows]."""
    nothing = positive * 0.0
    if LOSS == SOFTMAX:
        return positive, nothing, nothing
    return nothing - float("inf"), nothing, nothing


@inlined
def carried(scores, keep, positive, largest, weight, total, margin, temperature, LOSS: tl.constexpr):
    """What is carried after a tile, [rows, columns]."""
    if LOSS == SOFTMAX:
        scores = tl.where(keep, scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        weight = weight * tl.exp(largest - new) + tl.sum(tl.exp(scores - new[:, None]), 1)
        return new, weight, total
    if LOSS == LOGISTIC:
        return largest, weight, total + tl.sum(tl.where(keep, softplus(scores), 0.0), 1)
    if LOSS == MARGIN:
        excess = scores - positive[:, None] + margin
        weight += tl.sum(tl.where(keep & (excess > 0.0), 1.0, 0.0), 1)
        # The order of the comparison lets NaN through to the loss.
        total += tl.sum(tl.where(keep, tl.where(excess <= 0.0, 0.0, excess), 0.0), 1)
        return largest, weight, total
    new = tl.maximum(largest, tl.max(tl.where(keep, scores, -float("inf")), 1))
    # While no candidate counts, both are -inf, and their difference is no number.
    shrunk = tl.where(largest == -float("inf"), 0.0, tl.exp(temperature * (largest - new)))
    part = tl.where(keep, tl.exp(temperature * (scores - new[:, None])), 0.0)
    weight = weight * shrunk + tl.sum(part, 1)
    total = total * shrunk + tl.sum(tl.where(keep, part * softplus(scores + margin), 0.0), 1)
    return new, weight, total


@inlined
def finished(positive, largest, weight, total, scale, share, margin, LOSS: tl.constexpr):
    """Of each row: the loss, `scale` times its derivative by the positive score, and two numbers for `coefficients`.

    `share` is the weight of a negative in a mean over them.
    """
    if LOSS == SOFTMAX:
        everything = weight + tl.exp(positive - largest)
        factor = scale / everything
        # 1 - p of the positive as a sum of the others', which loses no digits where p is nearly 1.
        return tl.log(everything) + (largest - positive), -factor * weight, largest, factor
    if LOSS == LOGISTIC:
        return softplus(-positive) + total * share, -scale * sigmoid(-positive), largest, weight
    if LOSS == MARGIN:
        return total * share, -scale * share * weight, positive, weight
    # A NaN is not zero, and must be seen.
    inverse = tl.where(weight == 0.0, 0.0, 1.0 / tl.where(weight == 0.0, 1.0, weight))
    own = -(positive + margin)
    return softplus(own) + total * inverse, -scale * sigmoid(own), largest, scale * inverse


@inlined
def coefficients(scores, keep, first, second, scale, share, margin, temperature, LOSS: tl.constexpr):
    """`scale` times the derivative of the rows' losses by their scores; 0 where a candidate doesn't count."""
    if LOSS == SOFTMAX:
        found = second[:, None] * tl.exp(scores - first[:, None])
    elif LOSS == LOGISTIC:
        found = scale * share * sigmoid(scores)
    elif LOSS == MARGIN:
        found = tl.where(scores - first[:, None] + margin > 0.0, scale * share, 0.0)
    else:
        found = second[:, None] * tl.exp(temperature * (scores - first[:, None])) * sigmoid(scores + margin)
    return tl.where(keep, found, 0.0)
