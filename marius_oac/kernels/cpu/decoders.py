"""Decoders as kernels: queries, similarities and their gradients, row by row.

A decoder is a form (how anchor and relation make the query) and a similarity. RotatE's relation rows come here as
[cos | sin] of the phases, so that it is formed as ComplEx is. All vectors are of one length, D. The formulas are those
of `decoders`.
"""

import numpy as np

from marius_oac.kernels.cpu.jit import float_inlined
from marius_oac.kernels.cpu.sums import absolute_differences, dot, moduli_of_differences, squared_differences
from marius_oac.kernels.cpu.vector_math import fma

PLAIN, PRODUCT, COMPLEX_PRODUCT, SUM = range(4)
"""Forms of a query: the anchor itself, DistMult, ComplEx and RotatE, TransE."""

INNER, L1, L2, MODULI = range(4)
"""Similarities: inner product; the negative distances of TransE and RotatE."""

_ZERO, _ONE = np.float32(0), np.float32(1)


@float_inlined
def form_query(form, tail, anchor, relation, query):
    """Writes `query` [D]; `tail` says whether candidates are tails."""
    if form == PLAIN:
        for j in range(query.size):
            query[j] = anchor[j]
    elif form == PRODUCT:
        for j in range(query.size):
            query[j] = anchor[j] * relation[j]
    elif form == SUM:
        sign = _ONE if tail else -_ONE
        for j in range(query.size):
            query[j] = anchor[j] + sign * relation[j]
    else:
        half = query.size // 2
        sign = _ONE if tail else -_ONE
        for j in range(half):
            re, im = relation[j], sign * relation[half + j]
            query[j] = anchor[j] * re - anchor[half + j] * im
            query[half + j] = anchor[j] * im + anchor[half + j] * re


@float_inlined
def add_anchor_gradient(form, tail, gradient, relation, total):
    """Adds to `total` [D] the anchor's share of the query's `gradient` [D]."""
    if form == PRODUCT:
        for j in range(total.size):
            total[j] += gradient[j] * relation[j]
    elif form == COMPLEX_PRODUCT:
        half = total.size // 2
        sign = -_ONE if tail else _ONE
        for j in range(half):
            re, im = relation[j], sign * relation[half + j]
            total[j] += gradient[j] * re - gradient[half + j] * im
            total[half + j] += gradient[j] * im + gradient[half + j] * re
    else:
        for j in range(total.size):
            total[j] += gradient[j]


@float_inlined
def add_relation_gradient(form, tail, gradient, anchor, total):
    """Adds to `total` [D] the relation's share of the query's `gradient` [D]."""
    sign = _ONE if tail else -_ONE
    if form == PRODUCT:
        for j in range(total.size):
            total[j] += gradient[j] * anchor[j]
    elif form == SUM:
        for j in range(total.size):
            total[j] += sign * gradient[j]
    else:
        half = total.size // 2
        for j in range(half):
            total[j] += gradient[j] * anchor[j] + gradient[half + j] * anchor[half + j]
            total[half + j] += sign * (gradient[half + j] * anchor[j] - gradient[j] * anchor[half + j])


@float_inlined
def similarity(kind, query, candidate):
    """The score of one candidate [D] for a query [D]."""
    if kind == INNER:
        return dot(query, candidate)
    if kind == L1:
        return -absolute_differences(query, candidate)
    if kind == L2:
        return -np.sqrt(squared_differences(query, candidate))
    return -moduli_of_differences(query, candidate)


@float_inlined
def add_distance_gradient(kind, coefficient, here, there, total):
    """Adds to `total` [D] the gradient, by `here`, of a negative distance between `here` and `there`.

    The coefficient is the gradient by the score, for L2 divided by the distance. Where a distance is zero, so is its
    gradient.
    """
    if kind == L1:
        for j in range(total.size):
            difference = there[j] - here[j]
            step = coefficient if difference > _ZERO else -coefficient
            total[j] += _ZERO if difference == _ZERO else step
    elif kind == L2:
        for j in range(total.size):
            total[j] = fma(coefficient, there[j] - here[j], total[j])
    else:
        half = total.size // 2
        for j in range(half):
            re, im = there[j] - here[j], there[half + j] - here[half + j]
            modulus = np.sqrt(re * re + im * im)
            step = _ZERO if modulus == _ZERO else coefficient / modulus
            total[j] = fma(step, re, total[j])
            total[half + j] = fma(step, im, total[half + j])


@float_inlined
def add_similarity_gradient(kind, coefficient, here, there, total):
    """Adds to `total` [D] coefficient times the gradient of similarity(here, there) by `here`."""
    if kind == INNER:
        for j in range(total.size):
            total[j] = fma(coefficient, there[j], total[j])
    elif kind == L2:
        distance = -similarity(kind, here, there)
        if distance > _ZERO:
            add_distance_gradient(kind, coefficient / distance, here, there, total)
    else:
        add_distance_gradient(kind, coefficient, here, there, total)
