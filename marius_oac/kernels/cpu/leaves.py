"""Kernels between the rows of a batch in a user's own loop, the leaf tensor that has their values, and gradients.

Sums have one order, that of the batch's keys, whatever the keys are: they are for one thread.
"""

import numpy as np

from marius_oac.kernels.cpu.jit import float_compiled
from marius_oac.kernels.cpu.prefetch import prefetch_row
from marius_oac.kernels.cpu.sums import dot

_ZERO, _ONE = np.float32(0), np.float32(1)
_AHEAD = 16  # rows


@float_compiled
def gather(rows, order, into):
    """Copies the first floats of the rows at `order`, int64 [m], to `into`, float32 [m, D]."""
    for i in range(order.size):
        prefetch_row(rows, order[min(i + _AHEAD, order.size - 1)], into.shape[1])
        row, copy = rows[order[i]], into[i]
        for j in range(copy.size):
            copy[j] = row[j]


@float_compiled
def gather_whole(leaf, rows, order, into):
    """As `gather`, but `into`, float32 [m, width], gets its first floats from `leaf`, float32 [m, D]."""
    dimension = leaf.shape[1]
    for i in range(order.size):
        prefetch_row(rows, order[min(i + _AHEAD, order.size - 1)], into.shape[1])
        value, state, copy = leaf[i], rows[order[i], dimension:], into[i]
        for j in range(dimension):
            copy[j] = value[j]
        rest = copy[dimension:]
        for j in range(state.size):
            rest[j] = state[j]


@float_compiled
def copy_values(whole, leaf):
    """Copies the first floats of each row of `whole`, float32 [m, width], to `leaf`, float32 [m, D]."""
    for i in range(leaf.shape[0]):
        row, copy = whole[i], leaf[i]
        for j in range(copy.size):
            copy[j] = row[j]


@float_compiled
def scatter(whole, order, rows):
    """Copies `whole`, float32 [m, width], to the rows at `order`, int64 [m]."""
    for i in range(order.size):
        prefetch_row(rows, order[min(i + _AHEAD, order.size - 1)], whole.shape[1])
        row, source = rows[order[i]], whole[i]
        for j in range(row.size):
            row[j] = source[j]


@float_compiled
def add(vectors, places, sums):
    """Adds vectors, float32 [n, D], to the sums, float32 [m, D], at `places`, int64 [n]."""
    for i in range(places.size):
        prefetch_row(sums, places[min(i + _AHEAD, places.size - 1)], sums.shape[1])
        total, part = sums[places[i]], vectors[i]
        for j in range(total.size):
            total[j] += part[j]


@float_compiled
def pool(values, places, offsets, weights, padding, mean, scales, pooled):
    """Adds up the values of each bag, times their weights; an empty bag gives zeros.

    Args:
        values: float32 [m, D].
        places: int64 [n], in `values`.
        offsets: int64 [b + 1], where each bag begins.
        weights: float32 [n], or [0]: all are 1.
        padding: a place that counts as none; -1: there is none.
        mean: sums are divided by the number of values.
        scales: float32 [b], filled in: what each bag's sum was multiplied by.
        pooled: float32 [b, D], filled in.
    """
    for b in range(scales.size):
        into, count = pooled[b], 0
        into[:] = _ZERO
        for at in range(offsets[b], offsets[b + 1]):
            prefetch_row(values, places[min(at + _AHEAD, places.size - 1)], values.shape[1])
            if places[at] == padding:
                continue
            count += 1
            row, weight = values[places[at]], weights[at] if weights.size > 0 else _ONE
            for j in range(into.size):
                into[j] += weight * row[j]
        scales[b] = _ONE / np.float32(count) if mean and count > 0 else _ONE
        for j in range(into.size):
            into[j] *= scales[b]


@float_compiled
def largest(values, places, offsets, padding, pooled, chosen):
    """The largest number of each column of each bag, and its place, int64 [b, D]; 0 and -1 for an empty bag. Other
    arguments are those of `pool`."""
    for b in range(offsets.size - 1):
        into, where = pooled[b], chosen[b]
        into[:], where[:] = _ZERO, -1
        for at in range(offsets[b], offsets[b + 1]):
            prefetch_row(values, places[min(at + _AHEAD, places.size - 1)], values.shape[1])
            if places[at] == padding:
                continue
            row = values[places[at]]
            for j in range(into.size):
                if where[j] < 0 or row[j] > into[j]:
                    into[j], where[j] = row[j], places[at]


@float_compiled
def share_out(gradients, places, offsets, weights, padding, scales, sums):
    """Adds the gradients of bags, float32 [b, D], to those of their values, float32 [m, D]. Other arguments are those
    of `pool`."""
    for b in range(scales.size):
        part = gradients[b]
        for at in range(offsets[b], offsets[b + 1]):
            prefetch_row(sums, places[min(at + _AHEAD, places.size - 1)], sums.shape[1])
            if places[at] == padding:
                continue
            factor, total = scales[b] * weights[at] if weights.size > 0 else scales[b], sums[places[at]]
            for j in range(total.size):
                total[j] += factor * part[j]


@float_compiled
def of_weights(gradients, values, places, offsets, padding, found):
    """The gradients of weights, float32 [n], all zeros before, from those of bags. Other arguments are those of
    `pool`."""
    for b in range(offsets.size - 1):
        part = gradients[b]
        for at in range(offsets[b], offsets[b + 1]):
            if places[at] == padding:
                continue
            found[at] = dot(part, values[places[at]])
