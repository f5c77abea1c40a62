"""Runs the program of a batch task by task: where a library makes the products that kernels can't call, and where a
user's optimizer updates rows.

Guarantees:
- A phase begins when all tasks of the one before have ended.
- What a task writes depends on the task alone, not on the thread that runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from marius_oac.kernels.cpu import lanes
from marius_oac.kernels.cpu import tiles as kernels
from marius_oac.kernels.cpu.row_updates import Rule
from marius_oac.models.compute.multiply import Multiply
from marius_oac.models.compute.row_optimizers import RowUpdate
from marius_oac.models.link_prediction.program import Program
from marius_oac.runtime.thread_pool import Task, ThreadPool


def run_phases(
    program: Program,
    phases: range,
    batch: lanes.Arrays,
    updates: tuple[RowUpdate, RowUpdate],
    multiply: Multiply,
    pool: ThreadPool,
) -> None:
    """Runs some phases of a program.

    Args:
        updates: of the entities' rows, and of the relations'.
        multiply: makes the products of tiles; a batch of distances has none, and no such tasks.
    """
    for phase in phases:
        first, end = program.phases[phase], program.phases[phase + 1]
        run = partial(_run, batch, updates, multiply)
        tasks: Sequence[Task] = [partial(run, task) for task in program.tasks[first:end]]
        pool.run(tasks)


def _run(batch: lanes.Arrays, updates: tuple[RowUpdate, RowUpdate], multiply: Multiply, task: np.ndarray) -> None:
    kind, begin, end = (int(each) for each in task[:3])
    if kind == lanes.TILE:
        _tile(batch, multiply, *(int(each) for each in task[1:6]))
    elif kind == lanes.CANDIDATES:
        _candidates(batch, multiply, *(int(each) for each in task[1:]))
    elif kind == lanes.ENTITIES:
        _update(batch, updates[0], batch.rows, slice(begin, end), task)
    elif kind == lanes.RELATIONS:
        _update(batch, updates[1], batch.table, batch.picks[begin:end], task)
    else:
        lanes.other(batch, 0, task)


def _update(
    batch: lanes.Arrays, update: RowUpdate, table: np.ndarray, index: slice | np.ndarray, task: np.ndarray
) -> None:
    of_relations = task[0] == lanes.RELATIONS
    dimension = batch.work.queries.shape[2]
    own = batch._replace(gradient=np.empty((1, dimension), np.float32))  # other threads write to the batch's

    def kernel(rule: Rule) -> None:
        lanes.other(own._replace(relation_rule=rule) if of_relations else own._replace(rule=rule), 0, task)

    width = dimension // 2 if of_relations and batch.form.phases else dimension
    update.run(kernel, table, index, width)


def _of_group(batch: lanes.Arrays, group: int) -> slice:
    first = group * batch.per_group if batch.form.sampled else 0
    return slice(first, first + batch.per_group)


@np.errstate(invalid="ignore", over="ignore")  # The pipeline reports a diverged loss, not NumPy.
def _tile(batch: lanes.Arrays, multiply: Multiply, s: int, start: int, stop: int, offset: int, group: int) -> None:
    form, work, edges = batch.form, batch.work, batch.edges
    kernels.open_tile(form, batch.rows, edges, work, s, start, stop)
    queries, gradients = work.queries[s, start:stop], work.query_gradients[s, start:stop]
    candidates = batch.candidates[_of_group(batch, group)]
    scores = batch.scores[offset : offset + (stop - start) * batch.per_group].reshape(stop - start, batch.per_group)
    multiply(queries, candidates.T, scores)
    targets = (edges.tails if edges.sides[s] == 1 else edges.heads)[start:stop]
    listed = batch.listed[_of_group(batch, group)] if form.sampled else batch.listed
    positives, losses = work.positives[s, start:stop], work.losses[s, start:stop]
    kernels.turn_tile(form, batch.loss, scores, targets, listed, positives, losses)
    multiply(scores, candidates, gradients)
    if form.sampled:
        kernels.close_tile(form, batch.rows, edges, work, s, start, stop)


@np.errstate(invalid="ignore", over="ignore")
def _candidates(
    batch: lanes.Arrays, multiply: Multiply, s: int, start: int, stop: int, offset: int, group: int, begin: int,
    end: int, adds: int,
) -> None:  # fmt: skip
    """Computes the gradients of candidates; adds them to those there if `adds`."""
    scores = batch.scores[offset : offset + (stop - start) * batch.per_group].reshape(stop - start, batch.per_group)
    first = group * batch.per_group
    into = batch.work.candidate_gradients[first + begin : first + end]
    target = np.empty_like(into) if adds else into
    multiply(scores[:, begin:end].T, batch.work.queries[s, start:stop], target)
    if adds:
        into += target
