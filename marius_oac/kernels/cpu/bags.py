"""Kernels between the rows of a batch and the inputs of a network on the CPU: gather, pool, add up gradients, update.

An occurrence of a row is a place in the inputs: its field and example, packed into an int64 (`_pack`). Every sum has
one fixed order, whatever the number of threads: the thread that updates a row adds up its gradient, from the list of
its occurrences, in the order of that list.

Loops over the floats of a row run over slices: an index such as `column + j` might be negative for all that Numba
knows, which keeps such a loop from being vectorised.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu.jit import float_compiled, float_inlined
from marius_oac.kernels.cpu.prefetch import prefetch, prefetch_row
from marius_oac.kernels.cpu.row_updates import update_row
from marius_oac.kernels.cpu.sums import dot

_ZERO = np.float32(0)
_LINE_FLOATS = 16  # a cache line
_LINE_INDICES = 8
_AHEAD = 32  # occurrences; with 8 adding up takes twice as long
_FIELDS_AHEAD = 4
_FIELD_BITS = 32
_EXAMPLE_MASK = (1 << _FIELD_BITS) - 1


class Inputs(NamedTuple):
    """float32 arrays that the rows of all tables are gathered into, or the gradients by them.

    `values` [B, W]: the fields' embeddings side by side, field f from column `columns[f]` (int64 [F]) on; `weights`
    [B, F]: the first-order weights, [0, 0] where the network has none. A sequence is one field of B * L examples.
    """

    values: np.ndarray
    weights: np.ndarray
    columns: np.ndarray


@float_inlined
def _pack(field, example):
    return (np.int64(field) << _FIELD_BITS) | np.int64(example)


@float_compiled
def gather(rows, dimension, local, fields, begin, end, inputs):
    """Copies the rows of single-valued features, local int64 [f, B], of the examples [begin, end) to their `fields`."""
    weighted = inputs.weights.shape[0] > 0
    width = dimension + 1 if weighted else dimension
    # A few examples at a time: as many as a cache line has indices, and the rows of `inputs` they fill stay near.
    for start in range(begin, end, _LINE_INDICES):
        stop = min(start + _LINE_INDICES, end)
        for i in range(fields.size):
            field, column, following = fields[i], inputs.columns[fields[i]], min(i + _FIELDS_AHEAD, fields.size - 1)
            for b in range(start, stop):
                prefetch_row(rows, local[following, b], width)
            for b in range(start, stop):
                row, into = rows[local[i, b]], inputs.values[b, column : column + dimension]
                for j in range(dimension):
                    into[j] = row[j]
                if weighted:
                    inputs.weights[b, field] = row[dimension]


@float_compiled
def pool(rows, dimension, picks, offsets, scales, field, begin, end, inputs):
    """Adds up the rows of each bag [begin, end), times its scale, float32 [B]; an empty bag gives zeros."""
    weighted = inputs.weights.shape[0] > 0
    column = inputs.columns[field]
    for b in range(begin, end):
        into = inputs.values[b, column : column + dimension]
        into[:] = _ZERO
        weight = _ZERO
        for at in range(offsets[b], offsets[b + 1]):
            prefetch_row(rows, picks[min(at + _AHEAD, offsets[end] - 1)], dimension + 1 if weighted else dimension)
            row = rows[picks[at]]
            for j in range(dimension):
                into[j] += row[j]
            if weighted:
                weight += row[dimension]
        scale = scales[b]
        for j in range(dimension):
            into[j] *= scale
        if weighted:
            inputs.weights[b, field] = weight * scale


@float_compiled
def pad(rows, dimension, picks, offsets, begin, end, padded):
    """Copies the rows of the sequences [begin, end) to `padded` [B * L, D], with zeros after the last row of each."""
    length = padded.shape[0] // (offsets.size - 1)
    for b in range(begin, end):
        count = offsets[b + 1] - offsets[b]
        for k in range(count):
            prefetch_row(rows, picks[min(offsets[b] + k + _AHEAD, offsets[end] - 1)], dimension)
            row, into = rows[picks[offsets[b] + k]], padded[b * length + k]
            for j in range(dimension):
                into[j] = row[j]
        padded[b * length + count : (b + 1) * length] = _ZERO


@float_compiled
def share_out(dimension, scales, field, begin, end, gradients):
    """Turns gradients by bags, in place, into gradients by each of their rows: times the bag's scale, float32 [B]."""
    column = gradients.columns[field]
    for b in range(begin, end):
        scale, part = scales[b], gradients.values[b, column : column + dimension]
        for j in range(dimension):
            part[j] *= scale
        if gradients.weights.shape[0] > 0:
            gradients.weights[b, field] *= scale


@float_inlined
def _count(picks, first):
    for i in range(picks.size):
        first[picks[i] + 1] += 1


@float_inlined
def _accumulate(first):
    for k in range(1, first.size):
        first[k] += first[k - 1]


@float_inlined
def _place(row, field, example, first, places):
    places[first[row]] = _pack(field, example)
    first[row] += 1


@float_inlined
def _step_back(first):
    # Every start has moved to the next one's place.
    for k in range(first.size - 1, 0, -1):
        first[k] = first[k - 1]
    first[0] = 0


@float_compiled
def invert_fields(local, fields, bags, bag_offsets, bag_fields, first, places):
    """Lists the occurrences of each row k, places[first[k]:first[k + 1]], by feature and example.

    Single-valued features: `local` [f, B], `fields` [f]. Bags: `bags` [V] concatenates the values of all bag features;
    `bag_offsets` [g, B + 1] index it; `bag_fields` [g].
    """
    first[:] = 0
    for i in range(fields.size):
        _count(local[i], first)
    _count(bags, first)
    _accumulate(first)
    for i in range(fields.size):
        for b in range(local.shape[1]):
            _place(local[i, b], fields[i], b, first, places)
    for i in range(bag_fields.size):
        for b in range(bag_offsets.shape[1] - 1):
            for at in range(bag_offsets[i, b], bag_offsets[i, b + 1]):
                _place(bags[at], bag_fields[i], b, first, places)
    _step_back(first)


@float_compiled
def invert_sequence(picks, offsets, length, first, places):
    """As `invert_fields`, for one sequence padded to [B * length, D]."""
    first[:] = 0
    _count(picks, first)
    _accumulate(first)
    for b in range(offsets.size - 1):
        for at in range(offsets[b], offsets[b + 1]):
            _place(picks[at], 0, b * length + at - offsets[b], first, places)
    _step_back(first)


@float_compiled
def add_gradients(first, places, gradients, dimension, begin, end, sums):
    """Adds to `sums` [end - begin, D, or D + 1 with first-order weights] the gradients of the rows [begin, end)."""
    weighted = gradients.weights.shape[0] > 0
    for k in range(begin, end):
        total = sums[k - begin]
        for at in range(first[k], first[k + 1]):
            ahead = places[min(at + _AHEAD, first[end] - 1)]
            _prefetch_place(gradients, ahead, dimension)
            field, b = places[at] >> _FIELD_BITS, places[at] & _EXAMPLE_MASK
            column = gradients.columns[field]
            part = gradients.values[b, column : column + dimension]
            for j in range(dimension):
                total[j] += part[j]
            if weighted:
                total[dimension] += gradients.weights[b, field]


@float_inlined
def _prefetch_place(gradients, place, dimension):
    field, b = place >> _FIELD_BITS, place & _EXAMPLE_MASK
    for j in range(0, dimension, _LINE_FLOATS):
        prefetch(gradients.values, b, gradients.columns[field] + j)


@float_compiled
def update(rule, weight, begin, end, sums, rows, penalties):
    """Adds the penalty's gradient to `sums` [end - begin, D] and updates the rows [begin, end) in place.

    `weight` is the factor of a row's value in its L2 gradient; `penalties` float64 [n] gets each row's sum of squares.
    """
    for k in range(begin, end):
        row, gradient = rows[k], sums[k - begin]
        if weight != _ZERO:
            value = row[: gradient.size]
            penalties[k] = dot(value, value)
            for j in range(gradient.size):
                gradient[j] += weight * value[j]
        update_row(row, gradient, rule)
