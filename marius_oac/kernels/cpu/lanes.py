"""A batch of the handwritten gradient as one call a thread, without Python between its stages.

A program is a list of tasks in phases. Threads that run it, its lanes, take the tasks of a phase one by one, and go on
once all of them are finished.

Guarantees:
- Any number of lanes, from one on, runs every task once. One that comes late, or never, holds up nobody.
- Tasks of one phase write to different places, and what a task writes depends on the task alone: the same bits for any
  number of lanes.
- A lane that waits gives its core to another thread that wants it.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu import edges
from marius_oac.kernels.cpu.atomics import address_of, fetch_add, load, pause, yield_thread
from marius_oac.kernels.cpu.decoders import INNER, L2, add_distance_gradient
from marius_oac.kernels.cpu.gemm import multiply
from marius_oac.kernels.cpu.jit import float_compiled, float_inlined
from marius_oac.kernels.cpu.losses import LossRule
from marius_oac.kernels.cpu.row_updates import Rule
from marius_oac.kernels.cpu.tiles import differentiate_scores

GATHER, COPY, INVERT_ENTITIES, INVERT_RELATIONS, TILE, CANDIDATES, RELATIONS, ENTITIES, PACK = range(9)
"""Kinds of tasks. What follows the kind in the list of tasks:

    GATHER, COPY             first and last candidate that is copied
    PACK                     group, first and last of its candidates that are rounded; see `bfloat16_lanes`
    INVERT_...               nothing
    TILE                     side number, first and last edge, offset of its scores, group of candidates
    CANDIDATES               the same of consecutive tiles, first and last candidate, 1 if gradients are added to others
    RELATIONS, ENTITIES      first and last row that is updated
"""

COLUMNS = 9
WORDS = 16
"""Of `counters` for a phase: tasks that have been taken, and those that are finished, in cache lines of their own."""

HALF = WORDS // 2
_SPINS = 2000
_BYTES = 4  # of a float


class Arrays(NamedTuple):
    """A batch's arrays and settings. See `edges`; float32 where nothing else is said.

    `listed` int64 [G K] are the sampled negatives, `candidates` [G K, D] their values, or [N, D] those of all entities;
    `per_group` is K or N. `scores`, and `distances` if L2 needs them, are of one wave, flat. `first`, `places`,
    `relation_first`, `relation_places` are written by `invert`. `picks` are the relations' rows in `table`. A lane has
    a row of `gradient` [L, D] and of `more` [L, ., D], for products that are added to others.
    """

    form: edges.Form
    loss: LossRule
    rule: Rule
    relation_rule: Rule
    rows: np.ndarray
    edges: edges.Edges
    work: edges.Work
    listed: np.ndarray
    candidates: np.ndarray
    per_group: int
    scores: np.ndarray
    distances: np.ndarray
    first: np.ndarray
    places: np.ndarray
    relation_first: np.ndarray
    relation_places: np.ndarray
    picks: np.ndarray
    table: np.ndarray
    penalties: np.ndarray
    relation_penalties: np.ndarray
    gradient: np.ndarray
    more: np.ndarray


@float_inlined
def _place(matrix, offset, width):
    """For `multiply`: the float at `offset` of an array in C order, and the floats of a row."""
    return address_of(matrix) + _BYTES * offset, width


@float_inlined
def _tile(batch, sgemm, task):
    s, start, stop, offset, group = task[1], task[2], task[3], task[4], task[5]
    form, work, per_group = batch.form, batch.work, batch.per_group
    count, dimension = stop - start, work.queries.shape[2]
    edges.open_tile(form, batch.rows, batch.edges, work, s, start, stop)
    shared = group * per_group if form.sampled else 0
    scores = batch.scores[offset : offset + count * per_group].reshape(count, per_group)
    candidates = batch.candidates[shared : shared + per_group]
    queries, gradients = work.queries[s], work.query_gradients[s]
    theirs, mine = _place(candidates, 0, dimension), _place(scores, 0, per_group)
    if form.similarity == INNER:
        multiply(sgemm, 2, count, per_group, dimension, _place(queries, start * dimension, dimension), theirs, mine)
    else:
        edges.distance_scores(form.similarity, queries[start:stop], candidates, scores)
    if form.similarity == L2:
        distances = batch.distances[offset : offset + count * per_group]
        for i in range(distances.size):
            distances[i] = batch.scores[offset + i]
    targets = (batch.edges.tails if batch.edges.sides[s] == 1 else batch.edges.heads)[start:stop]
    listed = batch.listed[shared : shared + per_group]
    differentiate_scores(
        form, batch.loss, scores, targets, listed, work.positives[s, start:stop], work.losses[s, start:stop]
    )
    if form.similarity == L2:
        edges.divide_by_distances(scores, distances.reshape(count, per_group))
    if form.similarity == INNER:
        multiply(sgemm, 0, count, dimension, per_group, mine, theirs, _place(gradients, start * dimension, dimension))
    else:
        gradients[start:stop] = 0
        for i in range(count):
            for k in range(per_group):
                there = candidates[k]
                add_distance_gradient(form.similarity, scores[i, k], queries[start + i], there, gradients[start + i])
    if form.sampled:
        edges.close_tile(form, batch.rows, batch.edges, work, s, start, stop)


@float_inlined
def _candidates(batch, sgemm, lane, task):
    s, start, stop, offset, group = task[1], task[2], task[3], task[4], task[5]
    begin, end, adds = task[6], task[7], task[8] != 0
    form, work, per_group = batch.form, batch.work, batch.per_group
    count, dimension = stop - start, work.queries.shape[2]
    queries = work.queries[s, start:stop]
    into = work.candidate_gradients[group * per_group + begin : group * per_group + end]
    if form.similarity == INNER:
        scores = _place(batch.scores, offset + begin, per_group)
        target = batch.more[lane] if adds else into
        theirs = _place(queries, 0, dimension)
        multiply(sgemm, 1, end - begin, dimension, count, scores, theirs, _place(target, 0, dimension))
        if adds:
            for k in range(end - begin):
                for j in range(dimension):
                    into[k, j] += target[k, j]
        return
    if not adds:
        into[:] = 0
    scores = batch.scores[offset : offset + count * per_group].reshape(count, per_group)
    first = group * per_group if form.sampled else 0
    for k in range(begin, end):
        here = batch.candidates[first + k]
        for i in range(count):
            add_distance_gradient(form.similarity, scores[i, k], here, queries[i], into[k - begin])


@float_inlined
def run_other(batch, lane, task):
    """Runs a task of a kind that no product is in, on this lane."""
    kind, begin, end = task[0], task[1], task[2]
    gradient = batch.gradient[lane, : batch.work.queries.shape[2]]
    if kind == GATHER:
        edges.gather(batch.rows, batch.listed[begin:end], batch.candidates[begin:end])
    elif kind == COPY:
        edges.copy_values(batch.rows[begin:end], batch.candidates[begin:end])
    elif kind == INVERT_ENTITIES:
        edges.invert(batch.edges.heads, batch.edges.tails, batch.listed, batch.first, batch.places)
    elif kind == INVERT_RELATIONS:
        keys = batch.edges.relations
        edges.invert(keys, keys[:0], keys[:0], batch.relation_first, batch.relation_places)
    elif kind == RELATIONS:
        index = batch.relation_first, batch.relation_places
        edges.update_relations(
            batch.form, batch.relation_rule, batch.table, begin, end, batch.picks, batch.rows, batch.edges, batch.work,
            index, batch.relation_penalties, gradient,
        )  # fmt: skip
    else:
        edges.update_entities(
            batch.form, batch.rule, batch.rows, begin, end, batch.edges, batch.work, batch.first, batch.places,
            batch.penalties, gradient,
        )  # fmt: skip


@float_compiled
def other(batch, lane, task):
    """Runs a task that is no TILE and no CANDIDATES; see `run`."""
    run_other(batch, lane, task)


@float_inlined
def await_all(finished, count):
    """Waits until so many tasks are finished, by the counter at this address."""
    spins = 0
    while load(finished) < count:
        spins += 1
        if spins < _SPINS:
            pause()
        else:
            yield_thread()


@float_compiled
def run(batch, sgemm, tasks, phases, counters, lane):
    """Runs a program, together with the other lanes that call this.

    Args:
        batch: `Arrays`.
        sgemm: the address of the function for products (`runtime.blas.sgemm`); not used by distances.
        tasks: int64 [T, COLUMNS].
        phases: int64 [P + 1]; phase p has the tasks [phases[p], phases[p + 1]).
        counters: int64 [P * WORDS], zeros when the first lane begins.
        lane: the caller's number, from 0, below L.
    """
    for phase in range(phases.size - 1):
        first, count = phases[phase], phases[phase + 1] - phases[phase]
        taken = address_of(counters) + 8 * WORDS * phase
        finished = taken + 8 * HALF
        at = fetch_add(taken, 1)
        while at < count:
            task = tasks[first + at]
            if task[0] == TILE:
                _tile(batch, sgemm, task)
            elif task[0] == CANDIDATES:
                _candidates(batch, sgemm, lane, task)
            else:
                run_other(batch, lane, task)
            fetch_add(finished, 1)
            at = fetch_add(taken, 1)
        await_all(finished, count)
