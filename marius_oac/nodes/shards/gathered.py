"""The pulls of one batch, of one table, as if one trainer had made them all: gradients are added up and patches made by
a few calls for all trainers. With 1,000 trainers a call for each costs more than its rows do.

Guarantees:
- The bits are those of one trainer after the other, in the order in which they are given.
- Gradients are gathered some trainers at a time, so that they are added up while the processor's cache has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.nodes.shards.bags import Picks
from marius_oac.nodes.shards.table import ShardTable

_NO_ROWS = np.zeros(0, np.int64)
_BYTES_AT_ONCE = 1 << 19  # of gradients; with their sums by row they fit into the second-level cache


def added_up(
    rows: Sequence[np.ndarray],
    picks: Sequence[Picks],
    gradients: Sequence[np.ndarray],
    shares: Sequence[float],
    bound: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the union of the rows that some trainers have pulled, int64 [n], and the sums of share * gradient of
    those who have each, float32 [n, D], added in the order of the trainers.

    Args:
        rows: of each trainer, int64 [n_r], ascending. picks: how its answer was made of them.
        gradients: of the values of its answer, float32 [k_r, D]. shares: of each, 0 to 1.
        bound: rows are below it.
    """
    if len(rows) == 1 and shares[0] == 1.0:
        return rows[0], picks[0].by_row(gradients[0], rows[0].size)
    places = np.concatenate(rows)
    union = relabel(places, bound).copy()
    total, begun = np.empty((union.size, gradients[0].shape[1]), np.float32), np.zeros(union.size, np.bool_)
    factors, first = np.array(shares, np.float32), 0
    for some in _pieces(gradients):
        counts = [each.size for each in rows[some]]
        every, last = Picks.joined(picks[some], counts), first + sum(counts)
        by_row = every.by_row(_as_joined(gradients[some], picks[some]), last - first)
        kernels.add_weighted(places[first:last], by_row, np.repeat(factors[some], counts), begun, total)
        first = last
    return union, total


def tree_sums(
    slots: Sequence[int],
    rows: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    shares: Sequence[float],
    bound: int,
    dimension: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the union of rows, int64 [n], and their sums in a tree over slots, float32 [n, D], as
    `kernels.cpu.shards.tree_sum` makes them. Its cost is that of the terms, whatever the number of slots.

    Args:
        slots: of each block of sums, ascending. rows: of each, int64 [n_s].
        gradients: of each, float32 [n_s, D]. shares: of each.
        bound: rows are below it. dimension: D.
    """
    places = np.concatenate((_NO_ROWS, *rows))
    counts = [each.size for each in rows]
    union = relabel(places, bound).copy()
    starts, order = np.zeros(union.size + 1, np.int64), np.empty(places.size, np.int64)
    kernels.sort_by_row(places, starts, order)
    lengths = np.diff(starts)
    several = np.empty((int(lengths[lengths > 1].sum()), dimension), np.float32)
    factors, at = np.repeat(np.array(shares, np.float32), counts), np.empty(places.size, np.int64)
    total, first, held = np.empty((union.size, dimension), np.float32), 0, 0
    for some in _pieces(gradients):
        these = slice(first, first + sum(counts[some]))
        about = places[these], np.concatenate(gradients[some]), factors[these], starts
        held, first = kernels.place_terms(*about, total, several, held, at[these]), these.stop
    depth = max(1, max(slots, default=0).bit_length())
    kernels.tree_sums(
        order, starts, np.repeat(np.array(slots, np.int64), counts), factors, at, several,
        np.empty((depth, 2), np.int64), np.empty((depth, dimension), np.float32), total,
    )  # fmt: skip
    return union, total


def patches(
    table: ShardTable, rows: Sequence[np.ndarray], picks: Sequence[Picks], seen: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for each trainer what has changed of its answer: positions in it, int64 [k], and their newest values,
    [k, D], as messages hold them.

    Args:
        rows: of each trainer, int64 [n_r], ascending. picks: how its answer was made of them.
        seen: of each, the last batch whose changes it has seen.
    """
    counts = [each.size for each in rows]
    places = np.concatenate(rows)
    union = relabel(places, table.store.capacity).copy()
    newer = table.timestamps(union)[places] > np.repeat(seen, counts)
    every = Picks.joined(picks, counts)
    changed = every.holding(newer)
    taken = every.take(changed)
    needed, taken = Picks(places[taken.singles], places[taken.summed], taken.offsets).compact(union.size)
    values = table.format.sent(taken.values(table.read(union[needed])))
    return _split(changed, values, picks)


def _pieces(gradients: Sequence[np.ndarray]) -> Iterator[slice]:
    """Yields consecutive trainers with about `_BYTES_AT_ONCE` of gradients, all in all once."""
    first = nbytes = 0
    for at, each in enumerate(gradients):
        nbytes += each.nbytes
        if nbytes >= _BYTES_AT_ONCE or at + 1 == len(gradients):
            yield slice(first, at + 1)
            first, nbytes = at + 1, 0


def _as_joined(values: Sequence[np.ndarray], picks: Sequence[Picks]) -> np.ndarray:
    """Returns values of answers, float32 [k_r, D], in the order of `Picks.joined`."""
    singles = [each.singles.size for each in picks]
    firsts = [each[:count] for each, count in zip(values, singles, strict=True)]
    return np.concatenate([*firsts, *(each[count:] for each, count in zip(values, singles, strict=True))])


def _split(changed: np.ndarray, values: np.ndarray, picks: Sequence[Picks]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Splits positions in a joined answer, int64 [k], ascending, and their values, [k, D], by trainer."""
    singles = np.array([each.singles.size for each in picks])
    begins = np.cumsum([0, *singles, *(each.size - each.singles.size for each in picks)])
    bounds = np.searchsorted(changed, begins)
    # Of a trainer's own answer the first sum comes behind its single rows.
    origins = begins[:-1] - np.concatenate((np.zeros(len(picks), np.int64), singles))
    own, ends = changed - np.repeat(origins, np.diff(bounds)), bounds.tolist()
    found = []
    for first in range(len(picks)):
        single = slice(ends[first], ends[first + 1])
        summed = slice(ends[len(picks) + first], ends[len(picks) + first + 1])
        if summed.start == summed.stop:
            found.append((own[single], values[single]))
        else:
            places = np.concatenate((own[single], own[summed]))
            found.append((places, np.concatenate((values[single], values[summed]))))
    return found
