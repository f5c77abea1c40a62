"""`lanes` with the inputs of matrix products rounded to bfloat16: for inner products, where `bfloat16_gemm.is_there`.

What is rounded: candidates and queries, and the gradients by scores. The scores of edges' own ends, the losses and all
sums stay float32. Each matrix is rounded once: candidates in a phase of their own, queries and gradients by the tile
that computes them.

Guarantees: those of `lanes`.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu import edges
from marius_oac.kernels.cpu.atomics import address_of, fetch_add
from marius_oac.kernels.cpu.bfloat16_gemm import VECTOR, multiply_panels
from marius_oac.kernels.cpu.bfloat16_panels import pair_row, pair_rows, round_row, turn_pairs
from marius_oac.kernels.cpu.jit import float_compiled, float_inlined
from marius_oac.kernels.cpu.lanes import CANDIDATES, HALF, PACK, TILE, WORDS, await_all, run_other
from marius_oac.kernels.cpu.tiles import differentiate_scores

_BYTES = 4  # of a float, and of a pair


class Panels(NamedTuple):
    """Rounded matrices of a batch, in pairs (uint32); widths are padded to multiples of `VECTOR`.

    `for_scores` [G, D / 2, K] are the candidates in pairs of columns, transposed, and `for_queries` [G, K / 2, D] in
    pairs of candidates. `queries` [., D] and `gradients` [., K], not padded, are in pairs of edges of a chunk, those
    of a tile at `pair_of` its first. Of each lane: `own` [L, .] for a tile's queries and gradients in pairs of columns
    and for a block of candidates, and its scores `scores` [L, .], float32.
    """

    for_scores: np.ndarray
    for_queries: np.ndarray
    queries: np.ndarray
    gradients: np.ndarray
    own: np.ndarray
    scores: np.ndarray


@float_inlined
def halved(count):
    """Pairs of so many numbers."""
    return (count + 1) // 2


@float_inlined
def pair_of(edge, group):
    """The place of the pair that begins with an edge, by the number of edges before it, and its group: a group of an
    odd number of edges has a pair more than they have, so that no pair is of two groups."""
    return (edge + group) // 2


@float_inlined
def _at(array, offset):
    """The address of a number of a flat offset."""
    return address_of(array) + _BYTES * offset


@float_inlined
def _candidate(batch, group, k):
    """The address of candidate k of a group."""
    row = batch.listed[group * batch.per_group + k] if batch.form.sampled else k
    return _at(batch.rows, row * batch.rows.shape[1])


@float_inlined
def _pack(batch, panels, lane, task):
    group, begin, end = task[1], task[2], task[3]
    dimension, own = batch.work.queries.shape[2], address_of(panels.own[lane])
    _, pairs, width = panels.for_scores.shape
    _, candidate_pairs, padded = panels.for_queries.shape
    turned = _at(panels.for_scores, group * pairs * width)
    paired = _at(panels.for_queries, group * candidate_pairs * padded)
    for first in range(begin, end, VECTOR):
        last = min(first + VECTOR, end)
        for k in range(first, last):
            round_row(_candidate(batch, group, k), dimension, own + _BYTES * (k - first) * pairs)
        turn_pairs(own, pairs, last - first, pairs, turned + _BYTES * first, width)
        for k in range(first, last, 2):
            second = _candidate(batch, group, k + 1) if k + 1 < last else 0
            pair_row(_candidate(batch, group, k), second, dimension, paired + _BYTES * (k // 2) * padded)


@float_inlined
def _tile(batch, panels, lane, task):
    s, start, stop, offset, group = task[1], task[2], task[3], task[4], task[5]
    form, work, per_group = batch.form, batch.work, batch.per_group
    count, size, dimension = stop - start, work.queries.shape[1], work.queries.shape[2]
    edges.open_tile(form, batch.rows, batch.edges, work, s, start, stop)
    shared = group if form.sampled else 0
    own, pairs, (_, _, width) = address_of(panels.own[lane]), halved(dimension), panels.for_scores.shape
    _, candidate_pairs, padded = panels.for_queries.shape

    first = _at(work.queries, (s * size + start) * dimension)
    for i in range(count):
        round_row(first + _BYTES * i * dimension, dimension, own + _BYTES * i * pairs)
    into = _at(panels.queries, pair_of(s * size + start, group) * padded)
    pair_rows(first, dimension, count, dimension, into, padded)
    scores = panels.scores[lane, : count * per_group].reshape(count, per_group)
    multiply_panels(
        own, pairs, 1, _at(panels.for_scores, shared * pairs * width), width, address_of(scores), per_group, count,
        per_group, pairs, 0,
    )  # fmt: skip

    targets = (batch.edges.tails if batch.edges.sides[s] == 1 else batch.edges.heads)[start:stop]
    listed = batch.listed[shared * per_group : (shared + 1) * per_group]
    differentiate_scores(
        form, batch.loss, scores, targets, listed, work.positives[s, start:stop], work.losses[s, start:stop]
    )

    first = address_of(scores)
    for i in range(count):
        round_row(first + _BYTES * i * per_group, per_group, own + _BYTES * i * candidate_pairs)
    into = _at(panels.gradients, pair_of(offset // per_group, group) * per_group)
    pair_rows(first, per_group, count, per_group, into, per_group)
    multiply_panels(
        own, candidate_pairs, 1, _at(panels.for_queries, shared * candidate_pairs * padded), padded,
        _at(work.query_gradients, (s * size + start) * dimension), dimension, count, dimension, candidate_pairs, 0,
    )  # fmt: skip
    if form.sampled:
        edges.close_tile(form, batch.rows, batch.edges, work, s, start, stop)


@float_inlined
def _candidates(batch, panels, task):
    s, start, stop, offset, group = task[1], task[2], task[3], task[4], task[5]
    begin, end, adds = task[6], task[7], task[8]
    work, per_group, padded = batch.work, batch.per_group, panels.queries.shape[1]
    size, dimension = work.queries.shape[1], work.queries.shape[2]
    left = _at(panels.gradients, pair_of(offset // per_group, group) * per_group + begin)
    right = _at(panels.queries, pair_of(s * size + start, group) * padded)
    into = _at(work.candidate_gradients, (group * per_group + begin) * dimension)
    pairs = halved(stop - start)
    multiply_panels(left, 1, per_group, right, padded, into, dimension, end - begin, dimension, pairs, adds)


@float_compiled
def run(batch, panels, tasks, phases, counters, lane):
    """As `lanes.run`, of a program that has PACK for GATHER and COPY, and tiles of even numbers of edges but the last
    of a chunk."""
    for phase in range(phases.size - 1):
        first, count = phases[phase], phases[phase + 1] - phases[phase]
        taken = address_of(counters) + 8 * WORDS * phase
        finished = taken + 8 * HALF
        at = fetch_add(taken, 1)
        while at < count:
            task = tasks[first + at]
            if task[0] == PACK:
                _pack(batch, panels, lane, task)
            elif task[0] == TILE:
                _tile(batch, panels, lane, task)
            elif task[0] == CANDIDATES:
                _candidates(batch, panels, task)
            else:
                run_other(batch, lane, task)
            fetch_add(finished, 1)
            at = fetch_add(taken, 1)
        await_all(finished, count)
