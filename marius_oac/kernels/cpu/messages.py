"""Kernels over the edges of a block on the CPU: grouping by source, attention, weighted sums, and their gradients.

Every sum has one fixed order, that of the edges. Rows have H heads side by side, D floats each. `offsets` and `picks`
are a block's `offsets` and `sources`, or the other way round `BySource.offsets` and one of its lists.
"""

import numpy as np

from marius_oac.kernels.cpu.jit import float_compiled, float_inlined
from marius_oac.kernels.cpu.prefetch import prefetch_row
from marius_oac.kernels.cpu.sums import dot
from marius_oac.kernels.cpu.vector_math import exp, fma

_ZERO, _ONE = np.float32(0), np.float32(1)
_AHEAD = 16  # edges


@float_compiled
def group_by_source(sources, offsets, first, edges, destinations):
    """Fills what `block.BySource` describes: `first` [n + 1], `edges` [E] and `destinations` [E]."""
    first[:] = 0
    for e in range(sources.size):
        first[sources[e] + 1] += 1
    for i in range(1, first.size):
        first[i] += first[i - 1]
    for d in range(offsets.size - 1):
        for e in range(offsets[d], offsets[d + 1]):
            place = first[sources[e]]
            edges[place] = e
            destinations[place] = d
            first[sources[e]] = place + 1
    # Every start has moved to the next one's place.
    for i in range(first.size - 1, 0, -1):
        first[i] = first[i - 1]
    first[0] = 0


@float_compiled
def add_up_weighted(rows, weights, offsets, picks, begin, end, into):
    """Writes to `into` [., W] the sums of the rows [., W] that each of [begin, end) picks.

    Each head of a row is multiplied with its weight, `weights` [E, H] in the order of `picks`.
    """
    heads = weights.shape[1]
    width = rows.shape[1] // heads
    for i in range(begin, end):
        into[i] = _ZERO
        for at in range(offsets[i], offsets[i + 1]):
            prefetch_row(rows, picks[min(at + _AHEAD, offsets[end] - 1)], rows.shape[1])
            for h in range(heads):
                weight = weights[at, h]
                total, row = into[i, h * width : (h + 1) * width], rows[picks[at], h * width : (h + 1) * width]
                for j in range(width):
                    total[j] = fma(weight, row[j], total[j])


@float_compiled
def dots(rows, others, offsets, picks, begin, end, into):
    """Writes to `into` [E, H] the heads' inner products of the rows that each of [begin, end) picks and its other."""
    heads = into.shape[1]
    width = rows.shape[1] // heads
    for i in range(begin, end):
        for at in range(offsets[i], offsets[i + 1]):
            prefetch_row(rows, picks[min(at + _AHEAD, offsets[end] - 1)], rows.shape[1])
            for h in range(heads):
                other, row = others[i, h * width : (h + 1) * width], rows[picks[at], h * width : (h + 1) * width]
                into[at, h] = dot(row, other)


@float_inlined
def _score(source, destination, slope):
    """LeakyReLU of a sum."""
    score = source + destination
    return score if score > _ZERO else slope * score


@float_compiled
def attend(sources, destinations, slope, offsets, picks, begin, end, weights):
    """Writes to `weights` [E, H] the softmax, over the edges of each output [begin, end), of their scores.

    `sources` [n, H] and `destinations` [O, H]: what either end of an edge adds to its score.
    """
    for i in range(begin, end):
        first, last = offsets[i], offsets[i + 1]
        for h in range(weights.shape[1]):
            largest = -np.float32(np.inf)
            for at in range(first, last):
                score = _score(sources[picks[at], h], destinations[i, h], slope)
                weights[at, h] = score
                # NaN becomes the largest, so that it is seen.
                largest = largest if score <= largest else score
            total = _ZERO
            for at in range(first, last):
                weight = exp(weights[at, h] - largest)
                weights[at, h] = weight
                total += weight
            for at in range(first, last):
                weights[at, h] /= total


@float_compiled
def attend_back(sources, destinations, slope, offsets, picks, weights, gradients, begin, end, scores, into):
    """The gradients by the sums in `attend`: of each edge to `scores` [E, H], their sums to `into` [O, H].

    `gradients` [E, H] by the `weights` that `attend` wrote.
    """
    for i in range(begin, end):
        first, last = offsets[i], offsets[i + 1]
        for h in range(weights.shape[1]):
            mean = _ZERO
            for at in range(first, last):
                mean += weights[at, h] * gradients[at, h]
            total = _ZERO
            for at in range(first, last):
                gradient = weights[at, h] * (gradients[at, h] - mean)
                passed = sources[picks[at], h] + destinations[i, h] > _ZERO
                gradient *= _ONE if passed else slope
                scores[at, h] = gradient
                total += gradient
            into[i, h] = total
