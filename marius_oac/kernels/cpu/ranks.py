"""Scores in pieces of one shape, and what is counted of each while it is in the cache; see `evaluation.ranks`.

A product rounds by the shapes of its matrices, so pieces are padded: a score has the same bits wherever it stands.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu.atomics import address_of
from marius_oac.kernels.cpu.decoders import INNER, L2, MODULI
from marius_oac.kernels.cpu.gemm import multiply
from marius_oac.kernels.cpu.jit import compiled, float_compiled, float_inlined

BETTER, EQUAL, KNOWN_BETTER, KNOWN_EQUAL, NAN = range(5)
"""Rows of the counts of a block of queries, int64 [5, n]. The first four don't count the answer itself."""

ROWS, COLUMNS = 64, 256
"""Queries and candidates of a piece. Its scores fit a core's caches together with the embeddings."""


class Columns(NamedTuple):
    """A set of candidates for each of n queries: `values[first[i] : last[i]] - shift` are their columns, ascending,
    but for the value `but[i]`. What counts them moves `first` on."""

    first: np.ndarray  # int64 [n]
    last: np.ndarray  # int64 [n]
    values: np.ndarray  # int64
    shift: int
    but: np.ndarray  # int64 [n]


@float_inlined
def _score(kind, sgemm, queries, panel, count, width, piece):
    """Writes the scores of queries [ROWS, D] and a panel [D, COLUMNS]; of distances, those of [count, width] alone."""
    dimension = panel.shape[0]
    half = dimension // 2
    if kind == INNER:
        left, right = (address_of(queries), dimension), (address_of(panel), COLUMNS)
        multiply(sgemm, 0, ROWS, COLUMNS, dimension, left, right, (address_of(piece), COLUMNS))
        return
    for i in range(count):
        sums = piece[i, :width]
        for j in range(width):
            sums[j] = 0
        if kind == MODULI:
            for k in range(half):
                re, im = queries[i, k], queries[i, half + k]
                re_there, im_there = panel[k, :width], panel[half + k, :width]
                for j in range(width):
                    x, y = re - re_there[j], im - im_there[j]
                    sums[j] -= np.sqrt(x * x + y * y)
            continue
        for k in range(dimension):
            here, there = queries[i, k], panel[k, :width]
            for j in range(width):
                x = here - there[j]
                sums[j] -= x * x if kind == L2 else abs(x)
        if kind == L2:
            for j in range(width):
                sums[j] = -np.sqrt(-sums[j])


@float_inlined
def _compare(row, answer, first, places, i):
    """How many of the places in a row of scores, which begins at column `first`, are better and equal."""
    better, equal = 0, 0
    k, end = places.first[i], first + row.size + places.shift
    while k < places.last[i] and places.values[k] < end:
        if places.values[k] != places.but[i]:
            score = row[places.values[k] - places.shift - first]
            better += score > answer
            equal += score == answer
        k += 1
    places.first[i] = k
    return better, equal


@float_inlined
def _count(row, first, i, answer, own, known, counts):
    better, equal, worse = 0, 0, 0
    for j in range(row.size):
        better += row[j] > answer
        equal += row[j] == answer
        worse += row[j] < answer
    counts[NAN, i] += row.size - better - equal - worse + (answer != answer)
    own_better, own_equal = _compare(row, answer, first, own, i)
    known_better, known_equal = _compare(row, answer, first, known, i)
    counts[BETTER, i] += better - own_better
    counts[EQUAL, i] += equal - own_equal
    counts[KNOWN_BETTER, i] += known_better
    counts[KNOWN_EQUAL, i] += known_equal


@float_compiled
def count_scores(scores, true, own, known, width, counts):
    """Adds to the counts, int64 [5, n], what `scores` [>= n, >= width] have; see `rank`."""
    for i in range(true.size):
        _count(scores[i, :width], 0, i, true[i], own, known, counts)


@float_compiled
def rank(kind, sgemm, queries, panels, piece, true, own, known, width, counts):
    """Adds to the counts what the scores of n queries and `width` candidates have, piece by piece.

    Args:
        kind: a similarity of `decoders`.
        sgemm: see `gemm.multiply`; not used by distances.
        queries: float32 [n rounded up to ROWS, D].
        panels: the candidates, float32 [width / COLUMNS rounded up, D, COLUMNS].
        piece: float32 [ROWS, COLUMNS], for the scores; those of the last piece are left there.
        true: the scores of the answers, float32 [n].
        own: the `Columns` of the answers, so that they are not counted.
        known: those of other known answers.
    """
    for start in range(0, true.size, ROWS):
        count = min(ROWS, true.size - start)
        for p in range(panels.shape[0]):
            first = p * COLUMNS
            columns = min(COLUMNS, width - first)
            _score(kind, sgemm, queries[start : start + ROWS], panels[p], count, columns, piece)
            for i in range(count):
                _count(piece[i, :columns], first, start + i, true[start + i], own, known, counts)


@compiled
def find_in_range(groups, starts, ids, queries, start, stop, first, last):
    """Where the answers of each query that are in [start, stop) begin and end among the `ids`."""
    for i in range(queries.size):
        begin, end = starts[groups[queries[i]]], starts[groups[queries[i]] + 1]
        first[i] = begin + np.searchsorted(ids[begin:end], start)
        last[i] = begin + np.searchsorted(ids[begin:end], stop)


@compiled
def find_among(groups, own, starts, ids, queries, candidates, columns, offsets):
    """Writes to `columns` which of the candidates, ascending, are other answers of each query, and how many to
    `offsets`; only the latter if `columns` is empty."""
    total = 0
    for i in range(queries.size):
        query = queries[i]
        known = ids[starts[groups[query]] : starts[groups[query] + 1]]
        at = 0
        for j in range(candidates.size):
            candidate = candidates[j]
            if j == 0 or candidate != candidates[j - 1]:
                at += np.searchsorted(known[at:], candidate)
                if at == known.size:
                    break
            if known[at] == candidate and candidate != own[query]:
                if columns.size:
                    columns[total] = j
                total += 1
        offsets[i + 1] = total
