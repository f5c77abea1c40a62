"""Kernels of the hand-written gradient, beside the matrix products: before a tile, after it, and row by row.

Every sum has one fixed order, whatever the number of threads: the thread that updates a row adds up its gradient, from
the list of places where the row occurs (`invert`), in the order of that list.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu.decoders import (
    add_anchor_gradient,
    add_relation_gradient,
    add_similarity_gradient,
    form_query,
    similarity,
)
from marius_oac.kernels.cpu.jit import float_compiled, float_inlined
from marius_oac.kernels.cpu.prefetch import prefetch
from marius_oac.kernels.cpu.row_updates import update_row
from marius_oac.kernels.cpu.sums import cubed_moduli, cubes, dot

NO_PENALTY, SQUARES, CUBES, CUBED_MODULI = range(4)

_ZERO = np.float32(0)
_LINE_FLOATS = 16  # a cache line
_AHEAD = 4  # places; half and twice as many are no faster


class Form(NamedTuple):
    """The model's settings that the kernels need.

    Codes of the query's form, the similarity and the penalty; whether relations are `phases` (RotatE) and negatives
    `sampled`; the penalty's `share`, weight / B.
    """

    query: int
    similarity: int
    penalty: int
    phases: bool
    sampled: bool
    share: np.float32


class Edges(NamedTuple):
    """int64: local indices of a batch [B], and the sides [S] whose ends are replaced (1: tails)."""

    heads: np.ndarray
    tails: np.ndarray
    relations: np.ndarray
    sides: np.ndarray


class Work(NamedTuple):
    """Arrays that the stages of a batch pass on, float32 except `losses`.

    `relations` [m, D] as the forms want them; `queries` [S, B, D] and their gradients; `positives` [S, B] the scores of
    the edges' own ends, then the gradients by them; `candidate_gradients` [S C K, D] of sampled negatives, or [S N, D]
    of all entities; `losses` float64 [S, B].
    """

    relations: np.ndarray
    queries: np.ndarray
    query_gradients: np.ndarray
    positives: np.ndarray
    candidate_gradients: np.ndarray
    losses: np.ndarray


@float_inlined
def _prefetch(matrix, row, dimension):
    for j in range(0, dimension, _LINE_FLOATS):
        prefetch(matrix, row, j)


@float_inlined
def gather(rows, picks, into):
    """Copies the first columns of the picked rows to `into` [n, D]."""
    for i in range(picks.size):
        _prefetch(rows, picks[min(i + _AHEAD, picks.size - 1)], into.shape[1])
        row = picks[i]
        for j in range(into.shape[1]):
            into[i, j] = rows[row, j]


@float_inlined
def copy_values(rows, into):
    """Copies the first columns of the rows to `into` [n, D]."""
    for i in range(into.shape[0]):
        for j in range(into.shape[1]):
            into[i, j] = rows[i, j]


@float_compiled
def form_relations(table, picks, into):
    """Copies the values of the picked rows to `into` [m, D]."""
    gather(table, picks, into)


@float_compiled
def form_phases(table, picks, into):
    """Writes the picked rows of phases to `into` [m, D] as [cos | sin]."""
    half = into.shape[1] // 2
    for i in range(picks.size):
        for j in range(half):
            angle = table[picks[i], j]
            into[i, j] = np.cos(angle)
            into[i, half + j] = np.sin(angle)


@float_inlined
def invert(first_keys, second_keys, third_keys, first, places):
    """Lists each key's places in the concatenation of three lists: places[first[k]:first[k + 1]], ascending (int64)."""
    first[:] = 0
    for keys in (first_keys, second_keys, third_keys):
        for i in range(keys.size):
            first[keys[i] + 1] += 1
    for k in range(1, first.size):
        first[k] += first[k - 1]
    base = 0
    for keys in (first_keys, second_keys, third_keys):
        for i in range(keys.size):
            places[first[keys[i]]] = base + i
            first[keys[i]] += 1
        base += keys.size
    # Every start has moved to the next one's place.
    for k in range(first.size - 1, 0, -1):
        first[k] = first[k - 1]
    first[0] = 0


@float_inlined
def take_targets(scores, targets, positives):
    """Moves the score of each row's own candidate to `positives` and excludes it from the negatives."""
    for i in range(targets.size):
        positives[i] = scores[i, targets[i]]
        scores[i, targets[i]] = -np.inf


@float_inlined
def leave_out_targets(scores, targets, negatives):
    """Excludes drawn negatives that equal a row's own target from that row."""
    for i in range(targets.size):
        target, found = targets[i], 0
        for k in range(negatives.size):
            found += negatives[k] == target
        # Rare, and the search above is one of vectors.
        if found:
            for k in range(negatives.size):
                if negatives[k] == target:
                    scores[i, k] = -np.inf


@float_inlined
def put_targets(scores, targets, positives):
    """Puts the gradients by the rows' own candidates back among the others."""
    for i in range(targets.size):
        scores[i, targets[i]] = positives[i]


@float_inlined
def divide_by_distances(gradients, scores):
    """Makes gradients by L2 scores, in place, what `add_distance_gradient` takes."""
    for i in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            score = scores[i, k]
            gradients[i, k] = _ZERO if score == _ZERO else gradients[i, k] / -score


@float_inlined
def open_tile(form, rows, edges, work, s, start, stop):
    """Queries of the edges [start, stop) on side number s and, if negatives are sampled, their own ends' scores."""
    tail = edges.sides[s] == 1
    anchors, targets = (edges.heads, edges.tails) if tail else (edges.tails, edges.heads)
    dimension = work.queries.shape[2]
    for i in range(start, stop):
        ahead = min(i + _AHEAD, stop - 1)
        _prefetch(rows, anchors[ahead], dimension)
        _prefetch(rows, targets[ahead], dimension)
        query = work.queries[s, i]
        form_query(form.query, tail, rows[anchors[i], :dimension], work.relations[edges.relations[i]], query)
        if form.sampled:
            work.positives[s, i] = similarity(form.similarity, query, rows[targets[i], :dimension])


@float_inlined
def close_tile(form, rows, edges, work, s, start, stop):
    """Adds the part of the positive scores to the gradients of the queries."""
    targets = edges.tails if edges.sides[s] == 1 else edges.heads
    dimension = work.queries.shape[2]
    for i in range(start, stop):
        _prefetch(rows, targets[min(i + _AHEAD, stop - 1)], dimension)
        here, there = work.queries[s, i], rows[targets[i], :dimension]
        add_similarity_gradient(form.similarity, work.positives[s, i], here, there, work.query_gradients[s, i])


@float_inlined
def distance_scores(kind, queries, candidates, scores):
    """Fills in `scores`, float32 [R, K], of `queries` [R, D] against `candidates` [K, D]."""
    for i in range(queries.shape[0]):
        for k in range(candidates.shape[0]):
            scores[i, k] = similarity(kind, queries[i], candidates[k])


@float_inlined
def _add_penalty(form, count, value, gradient):
    """Adds the gradient of `count` penalties of a row, each times `share`; returns their sum without it."""
    times = form.share * np.float32(count)
    total = np.float64(0)
    if form.penalty == SQUARES:
        total += dot(value, value)
        for j in range(value.size):
            gradient[j] += np.float32(2) * times * value[j]
    elif form.penalty == CUBES:
        total += cubes(value)
        for j in range(value.size):
            gradient[j] += np.float32(3) * times * value[j] * abs(value[j])
    elif form.penalty == CUBED_MODULI:
        total += cubed_moduli(value)
        half = value.size // 2
        for j in range(half):
            re, im = value[j], value[half + j]
            modulus = np.sqrt(re * re + im * im)
            gradient[j] += np.float32(3) * times * modulus * re
            gradient[half + j] += np.float32(3) * times * modulus * im
    return total * count


@float_inlined
def _prefetch_place(place, edges, work):
    """Asks for what `_add_place` will read."""
    size, dimension = edges.heads.size, work.queries.shape[2]
    if place >= 2 * size:
        _prefetch(work.candidate_gradients, place - 2 * size, dimension)
        return
    is_tail = place >= size
    i = place - size if is_tail else place
    for s in range(edges.sides.size):
        _prefetch(work.queries[s] if (edges.sides[s] == 1) == is_tail else work.query_gradients[s], i, dimension)


@float_inlined
def _add_place(form, place, value, edges, work, gradient):
    """Adds the part of one place to the gradient of its entity, whose value is `value`; see `update_entities`."""
    size = edges.heads.size
    if place >= 2 * size:
        candidate = work.candidate_gradients[place - 2 * size]
        for j in range(gradient.size):
            gradient[j] += candidate[j]
        return
    is_tail = place >= size
    i = place - size if is_tail else place
    for s in range(edges.sides.size):
        tails_replaced = edges.sides[s] == 1
        if tails_replaced != is_tail:
            relation = work.relations[edges.relations[i]]
            add_anchor_gradient(form.query, tails_replaced, work.query_gradients[s, i], relation, gradient)
        elif form.sampled:
            add_similarity_gradient(form.similarity, work.positives[s, i], value, work.queries[s, i], gradient)


@float_inlined
def update_entities(form, rule, rows, begin, end, edges, work, first, places, penalties, gradient):
    """Adds up the gradients of the entities [begin, end) and updates their rows in place.

    `places` of an entity: below B the edges it is the head of, below 2B those it is the tail of, then the negatives.
    Without sampled negatives each row is a candidate on each side. `penalties` float64 [n] is filled in; `gradient`
    float32 [D] is a work array.
    """
    size, dimension = edges.heads.size, work.queries.shape[2]
    for k in range(begin, end):
        gradient[:] = 0
        value = rows[k, :dimension]
        count = 0
        for at in range(first[k], first[k + 1]):
            _prefetch_place(places[min(at + _AHEAD, first[end] - 1)], edges, work)
            _add_place(form, places[at], value, edges, work, gradient)
            count += places[at] < 2 * size
        if not form.sampled:
            for s in range(edges.sides.size):
                candidate = work.candidate_gradients[s * rows.shape[0] + k]
                for j in range(dimension):
                    gradient[j] += candidate[j]
        penalties[k] = _add_penalty(form, count, value, gradient)
        update_row(rows[k], gradient, rule)


@float_inlined
def update_relations(form, rule, table, begin, end, picks, rows, edges, work, index, penalties, gradient):
    """Adds up the gradients of the batch's relations [begin, end) and updates their rows of `table` in place.

    Reads the entities' `rows`, so it runs before they are updated. `index`: (first, places) of `invert`; `penalties`
    float64 [m] is filled in; `gradient` float32 [D] is a work array.
    """
    first, places = index
    dimension = gradient.size
    half = dimension // 2
    width = half if form.phases else dimension
    for k in range(begin, end):
        gradient[:] = 0
        for at in range(first[k], first[k + 1]):
            i, ahead = places[at], places[min(at + _AHEAD, first[end] - 1)]
            _prefetch(rows, edges.heads[ahead], dimension)
            _prefetch(rows, edges.tails[ahead], dimension)
            for s in range(edges.sides.size):
                _prefetch(work.query_gradients[s], ahead, dimension)
                tails_replaced = edges.sides[s] == 1
                anchor = rows[edges.heads[i] if tails_replaced else edges.tails[i], :dimension]
                add_relation_gradient(form.query, tails_replaced, work.query_gradients[s, i], anchor, gradient)
        if form.phases:
            for j in range(half):
                cosine, sine = work.relations[k, j], work.relations[k, half + j]
                gradient[j] = cosine * gradient[half + j] - sine * gradient[j]
        row = table[picks[k]]
        penalties[k] = _add_penalty(form, first[k + 1] - first[k], row[:width], gradient[:width])
        update_row(row, gradient[:width], rule)
