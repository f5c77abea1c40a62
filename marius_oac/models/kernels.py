"""Kernels of the hand-written gradient, beside the matrix products: before a tile, after it, and row by row.

Every sum has one fixed order, whatever the number of threads: a row's gradient is added up by whoever updates the row,
from the list of places that touch it (`invert`), in the order of that list.

Kernels that depend on the decoder are made for it: the codes are constants to the compiler, which then keeps one loop
of each function in `geometry`. With codes decided at run time a loop over 100 floats took 4 to 8 times as long.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from marius_oac.models.compiled import compiled, inlined
from marius_oac.models.geometry import (
    add_anchor_gradient,
    add_distance_gradient,
    add_relation_gradient,
    add_similarity_gradient,
    form_query,
    similarity,
)
from marius_oac.models.optimizers import update_row

NO_PENALTY, SQUARES, CUBES, CUBED_MODULI = range(4)

_ZERO = np.float32(0)


class Form(NamedTuple):
    """The decoder, the penalty and the row optimizer, as codes; `phases` if relations are angles (RotatE)."""

    query: int
    similarity: int
    phases: bool
    penalty: int
    optimizer: int


class Edges(NamedTuple):
    """int64: local indices of a batch [B], and the sides [S] whose ends are replaced (1: tails)."""

    heads: np.ndarray
    tails: np.ndarray
    relations: np.ndarray
    sides: np.ndarray


class Work(NamedTuple):
    """float32, but for `losses`: what the stages of a batch hand to each other.

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


@compiled
def gather(rows, picks, into):
    """Copies the first columns of the picked rows to `into` [n, D]."""
    for i in range(picks.size):
        row = picks[i]
        for j in range(into.shape[1]):
            into[i, j] = rows[row, j]


@compiled
def copy_values(rows, into):
    """Copies the first columns of the rows to `into` [n, D]."""
    for i in range(into.shape[0]):
        for j in range(into.shape[1]):
            into[i, j] = rows[i, j]


@compiled
def gather_relations(table, picks, phases, into):
    """Relation rows as the forms want them, `into` [m, D]; a phase becomes [cos | sin]."""
    if not phases:
        gather(table, picks, into)
        return
    half = into.shape[1] // 2
    for i in range(picks.size):
        for j in range(half):
            angle = table[picks[i], j]
            into[i, j] = np.cos(angle)
            into[i, half + j] = np.sin(angle)


@compiled
def invert(first_keys, second_keys, third_keys, first, places):
    """Where each key stands in the three lists laid end to end: places[first[k]:first[k + 1]], ascending (int64)."""
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


@compiled
def take_targets(scores, targets, positives):
    """Takes each row's own candidate out of its negatives."""
    for i in range(targets.size):
        positives[i] = scores[i, targets[i]]
        scores[i, targets[i]] = -np.inf


@compiled
def leave_out_targets(scores, targets, negatives):
    """Takes drawn negatives that happen to be a row's own target out of that row."""
    for i in range(targets.size):
        target = targets[i]
        for k in range(negatives.size):
            if negatives[k] == target:
                scores[i, k] = -np.inf


@compiled
def put_targets(scores, targets, positives):
    """Puts the gradients by the rows' own candidates back among the others."""
    for i in range(targets.size):
        scores[i, targets[i]] = positives[i]


@compiled
def divide_by_distances(gradients, scores):
    """Makes gradients by L2 scores, in place, what `add_distance_gradient` takes."""
    for i in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            score = scores[i, k]
            gradients[i, k] = _ZERO if score == _ZERO else gradients[i, k] / -score


@cache
def tile_opener(form: Form) -> Callable:
    query_form, kind = form.query, form.similarity

    @compiled
    def open_tile(rows, edges, work, s, start, stop, sampled):
        """Queries of the edges [start, stop) on side number s and, if negatives are sampled, their own ends' scores."""
        tail = edges.sides[s] == 1
        dimension = work.queries.shape[2]
        anchors, targets = (edges.heads, edges.tails) if tail else (edges.tails, edges.heads)
        for i in range(start, stop):
            query = work.queries[s, i]
            form_query(query_form, tail, rows[anchors[i], :dimension], work.relations[edges.relations[i]], query)
            if sampled:
                work.positives[s, i] = similarity(kind, query, rows[targets[i], :dimension])

    return open_tile


@cache
def tile_closer(kind: int) -> Callable:
    @compiled
    def close_tile(rows, edges, work, s, start, stop):
        """Adds what the positive scores give to the gradients of the queries."""
        dimension = work.queries.shape[2]
        targets = edges.tails if edges.sides[s] == 1 else edges.heads
        for i in range(start, stop):
            here, there = work.queries[s, i], rows[targets[i], :dimension]
            add_similarity_gradient(kind, work.positives[s, i], here, there, work.query_gradients[s, i])

    return close_tile


@cache
def distance_scorer(kind: int) -> Callable:
    @compiled
    def distance_scores(queries, candidates, scores):
        for i in range(queries.shape[0]):
            for k in range(candidates.shape[0]):
                scores[i, k] = similarity(kind, queries[i], candidates[k])

    return distance_scores


@cache
def distance_differentiator(kind: int) -> Callable:
    @compiled
    def add_distance_gradients(coefficients, here, there, totals):
        """Adds to `totals` [R, D] the gradients by `here` [R, D] of scores [R, K] against `there` [K, D]."""
        for i in range(here.shape[0]):
            for k in range(there.shape[0]):
                add_distance_gradient(kind, coefficients[i, k], here[i], there[k], totals[i])

    return add_distance_gradients


@inlined
def _add_penalty(penalty, share, count, value, gradient):
    """Adds the gradient of `count` penalties of a row, each times `share`; returns their sum without it."""
    times = share * np.float32(count)
    total = np.float64(0)
    if penalty == SQUARES:
        for j in range(value.size):
            total += value[j] * value[j]
            gradient[j] += np.float32(2) * times * value[j]
    elif penalty == CUBES:
        for j in range(value.size):
            total += value[j] * value[j] * abs(value[j])
            gradient[j] += np.float32(3) * times * value[j] * abs(value[j])
    elif penalty == CUBED_MODULI:
        half = value.size // 2
        for j in range(half):
            squares = value[j] * value[j] + value[half + j] * value[half + j]
            modulus = np.sqrt(squares)
            total += squares * modulus
            gradient[j] += np.float32(3) * times * modulus * value[j]
            gradient[half + j] += np.float32(3) * times * modulus * value[half + j]
    return total * count


@cache
def entity_updater(form: Form) -> Callable:
    query_form, kind, penalty, optimizer = form.query, form.similarity, form.penalty, form.optimizer

    @compiled
    def update_entities(rule, share, rows, begin, end, edges, work, first, places, penalties, sampled):
        """Adds up the gradients of the entities [begin, end) and updates their rows in place.

        `places` of an entity: below B the edges it is the head of, below 2B those it is the tail of, then the
        negatives. Without sampled negatives each row is a candidate on each side. `share`: weight of the penalty / B.
        `penalties` float64 [n].
        """
        size, dimension = edges.heads.size, work.queries.shape[2]
        gradient = np.empty(dimension, np.float32)
        for k in range(begin, end):
            gradient[:] = 0
            value = rows[k, :dimension]
            count = 0
            for at in range(first[k], first[k + 1]):
                place = places[at]
                if place >= 2 * size:
                    candidate = work.candidate_gradients[place - 2 * size]
                    for j in range(dimension):
                        gradient[j] += candidate[j]
                    continue
                count += 1
                is_tail = place >= size
                i = place - size if is_tail else place
                for s in range(edges.sides.size):
                    tail = edges.sides[s] == 1
                    if tail != is_tail:
                        relation = work.relations[edges.relations[i]]
                        add_anchor_gradient(query_form, tail, work.query_gradients[s, i], relation, gradient)
                    elif sampled:
                        add_similarity_gradient(kind, work.positives[s, i], value, work.queries[s, i], gradient)
            if not sampled:
                for s in range(edges.sides.size):
                    candidate = work.candidate_gradients[s * rows.shape[0] + k]
                    for j in range(dimension):
                        gradient[j] += candidate[j]
            penalties[k] = _add_penalty(penalty, share, count, value, gradient)
            update_row(optimizer, rows[k], gradient, rule)

    return update_entities


@cache
def relation_updater(form: Form) -> Callable:
    query_form, phases, penalty, optimizer = form.query, form.phases, form.penalty, form.optimizer

    @compiled
    def update_relations(rule, share, table, begin, end, picks, rows, edges, work, first, places, penalties):
        """Adds up the gradients of the batch's relations [begin, end) and updates their rows of `table` in place.

        Reads the entities' `rows`, so it runs before they are updated. `penalties` float64 [m].
        """
        dimension = work.queries.shape[2]
        half = dimension // 2
        gradient = np.empty(dimension, np.float32)
        width = half if phases else dimension
        for k in range(begin, end):
            gradient[:] = 0
            for at in range(first[k], first[k + 1]):
                i = places[at]
                for s in range(edges.sides.size):
                    tail = edges.sides[s] == 1
                    anchor = rows[edges.heads[i] if tail else edges.tails[i], :dimension]
                    add_relation_gradient(query_form, tail, work.query_gradients[s, i], anchor, gradient)
            if phases:
                cosine_sine = work.relations[k]
                for j in range(half):
                    gradient[j] = cosine_sine[j] * gradient[half + j] - cosine_sine[half + j] * gradient[j]
            row = table[picks[k]]
            penalties[k] = _add_penalty(penalty, share, first[k + 1] - first[k], row[:width], gradient[:width])
            update_row(optimizer, row, gradient[:width], rule)

    return update_relations
