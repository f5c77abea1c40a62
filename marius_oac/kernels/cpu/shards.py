"""Compiled operations on rows sent between nodes: copied by index, summed, gradients added up by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.kernels.cpu.jit import compiled


def spread(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`values[index]`: float32 [n, D] of [m, D] and int64 [n]."""
    out = np.empty((index.size, values.shape[1]), np.float32)
    spread_into(values, index, out)
    return out


@compiled
def spread_into(values, index, out):
    """`out[i] = values[index[i]]`; both float32 [., D]."""
    for i in range(index.size):
        row = index[i]
        for j in range(values.shape[1]):
            out[i, j] = values[row, j]


@compiled
def all_below(rows, bound):
    """Whether all rows are from 0 to `bound` - 1."""
    inside = True
    for i in range(rows.size):
        inside &= 0 <= rows[i] < bound
    return inside


@compiled
def sum_into(values, index, offsets, out):
    """`out[i]` is the sum of `values[index[offsets[i]:offsets[i + 1]]]`, at least one, in their order."""
    for i in range(offsets.size - 1):
        first = index[offsets[i]]
        for j in range(values.shape[1]):
            out[i, j] = values[first, j]
        for at in range(offsets[i] + 1, offsets[i + 1]):
            row = index[at]
            for j in range(values.shape[1]):
                out[i, j] += values[row, j]


@compiled
def any_of(marked, index, offsets, out):
    """`out[i]`: whether any of `marked[index[offsets[i]:offsets[i + 1]]]` is."""
    for i in range(offsets.size - 1):
        out[i] = False
        for at in range(offsets[i], offsets[i + 1]):
            if marked[index[at]]:
                out[i] = True


def scatter(values: np.ndarray, places: np.ndarray, into: np.ndarray) -> None:
    """`into[places[i]] = values[i]`; both float32 [., D]."""
    _scatter(values, places, into)


@compiled
def _scatter(values, places, into):
    for i in range(places.size):
        place = places[i]
        for j in range(values.shape[1]):
            into[place, j] = values[i, j]


def tree_sum(
    slots: Sequence[int],
    index: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    shares: Sequence[float],
    count: int,
    dimension: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The sums of share * gradient by row, in a binary tree over slots: 0 and 1, 2 and 3; these two; and so on.

    An aligned block of slots that is summed already stands in its first slot. What a slot lacks adds nothing: a sum
    with one term is that term, bit by bit. So the sums do not depend on which blocks were summed before.

    Args:
        slots: of each, ascending.
        index: int64 [n_s], rows of each slot. gradients: float32 [n_s, D]. shares: of each.
        count: rows are below it. dimension: D.

    Returns:
        Whether each row has a sum, bool [count], and the sums, float32 [count, D], of which others are undefined.
    """
    waiting: list[tuple[int, int, np.ndarray, np.ndarray]] = []  # first slot and slots of a block, and its sums
    for slot, rows, gradient, share in zip(slots, index, gradients, shares, strict=True):
        while waiting and waiting[-1][0] // (2 * waiting[-1][1]) != slot // (2 * waiting[-1][1]):
            _grow(waiting)
        if waiting and waiting[-1][1] == 1:  # its neighbour: added without an array of its own
            add(rows, gradient, np.float32(share), *waiting[-1][2:])
            _grow(waiting)
            continue
        begun, total = np.zeros(count, np.bool_), np.empty((count, dimension), np.float32)
        add(rows, gradient, np.float32(share), begun, total)
        waiting.append((slot, 1, begun, total))
    while len(waiting) > 1:
        _grow(waiting)
    if not waiting:
        return np.zeros(count, np.bool_), np.empty((count, dimension), np.float32)
    return waiting[0][2], waiting[0][3]


def _grow(waiting: list[tuple[int, int, np.ndarray, np.ndarray]]) -> None:
    """Makes the last block twice as long; one that begins there already takes it in."""
    slot, size, begun, total = waiting.pop()
    slot, size = slot // (2 * size) * 2 * size, 2 * size
    if waiting and waiting[-1][0] // size == slot // size:
        left = waiting.pop()
        join(begun, total, left[2], left[3])
        begun, total = left[2:]
    waiting.append((slot, size, begun, total))


@compiled
def join(others, other, begun, total):
    """Adds `other[i]` to `total[i]` where `others[i]`; the first one of a row assigns it and marks it in `begun`."""
    for i in range(others.size):
        if others[i]:
            if begun[i]:
                for j in range(total.shape[1]):
                    total[i, j] += other[i, j]
            else:
                begun[i] = True
                for j in range(total.shape[1]):
                    total[i, j] = other[i, j]


@compiled
def sort_by_row(places, starts, order):
    """The terms of each row, in their order: those of row i are `order[starts[i]:starts[i + 1]]`.

    `places`, int64 [n], are the rows of the terms; `starts`, int64 [rows + 1], is zero before.
    """
    for i in range(places.size):
        starts[places[i] + 1] += 1
    for row in range(1, starts.size):
        starts[row] += starts[row - 1]
    for i in range(places.size):
        order[starts[places[i]]] = i
        starts[places[i]] += 1
    for row in range(starts.size - 1, 0, -1):
        starts[row] = starts[row - 1]
    starts[0] = 0


@compiled
def place_terms(places, gradients, shares, starts, total, several, count, at):
    """Of some terms takes each that is the only one of its row as the row's sum, `total[row]`. The gradients of others
    are copied to `several`, float32 [k, D], behind the `count` that are there; `at` says where. Returns how many are
    there then.

    Args:
        places, gradients, shares, at: of these terms, int64 [n], float32 [n, D], float32 [n], int64 [n].
        starts: of all terms, see `sort_by_row`.
    """
    for i in range(places.size):
        row, share = places[i], shares[i]
        if starts[row + 1] - starts[row] == 1:
            for j in range(total.shape[1]):
                total[row, j] = share * gradients[i, j]
        else:
            at[i] = count
            for j in range(total.shape[1]):
                several[count, j] = gradients[i, j]
            count += 1
    return count


@compiled
def tree_sums(order, starts, slots, shares, at, several, block, sums, total):
    """`tree_sum` of each row with several terms by itself: `total[i]` is the sum of the terms of row i, which are as
    `sort_by_row` has them.

    Args:
        slots, shares: of each term, int64 [n] and float32 [n]; slots ascend. at, several: see `place_terms`.
        block, sums: work arrays, int64 [depth, 2] and float32 [depth, D]; depth is at least 1, slots are below 2^depth.
    """
    for row in range(starts.size - 1):
        if starts[row + 1] - starts[row] == 1:
            continue
        top, last = np.int64(-1), np.int64(-1)
        for place in range(starts[row], starts[row + 1]):
            term = order[place]
            slot, share, gradient = slots[term], shares[term], at[term]
            if slot != last:
                while top >= 0 and block[top, 0] // (2 * block[top, 1]) != slot // (2 * block[top, 1]):
                    top = _grow_top(block, sums, top)
                if top < 0 or block[top, 1] != 1:
                    top, last = top + 1, slot
                    block[top, 0], block[top, 1] = slot, 1
                    for j in range(total.shape[1]):
                        sums[top, j] = share * several[gradient, j]
                    continue
                block[top, 0], block[top, 1] = slot // 2 * 2, 2
            last = slot
            for j in range(total.shape[1]):
                sums[top, j] += share * several[gradient, j]
        while top > 0:
            top = _grow_top(block, sums, top)
        for j in range(total.shape[1]):
            total[row, j] = sums[0, j]


@compiled
def _grow_top(block, sums, top):
    """Makes the last block twice as long; one that begins there already takes it in. Returns the number of the last."""
    size = 2 * block[top, 1]
    block[top, 0], block[top, 1] = block[top, 0] // size * size, size
    if top == 0 or block[top - 1, 0] // size != block[top, 0] // size:
        return top
    for j in range(sums.shape[1]):
        sums[top - 1, j] += sums[top, j]
    block[top - 1, 0], block[top - 1, 1] = block[top, 0], size
    return top - 1


@compiled
def add(index, gradients, share, begun, total):
    """Adds `share * gradients[i]` to `total[index[i]]`; the first one of a row assigns it and marks it in `begun`."""
    for i in range(index.size):
        row = index[i]
        if begun[row]:
            for j in range(total.shape[1]):
                total[row, j] += share * gradients[i, j]
        else:  # assigned, so that a lone -0.0 stays one
            begun[row] = True
            for j in range(total.shape[1]):
                total[row, j] = share * gradients[i, j]


@compiled
def add_weighted(index, gradients, shares, begun, total):
    """As `add`, with a share of each gradient, float32 [n]."""
    for i in range(index.size):
        row, share = index[i], shares[i]
        if begun[row]:
            for j in range(total.shape[1]):
                total[row, j] += share * gradients[i, j]
        else:
            begun[row] = True
            for j in range(total.shape[1]):
                total[row, j] = share * gradients[i, j]


@compiled
def add_sums(index, offsets, gradients, begun, total):
    """Adds `gradients[i]` to each of `total[index[offsets[i]:offsets[i + 1]]]`, as `add` does."""
    for i in range(offsets.size - 1):
        for at in range(offsets[i], offsets[i + 1]):
            row = index[at]
            if begun[row]:
                for j in range(total.shape[1]):
                    total[row, j] += gradients[i, j]
            else:
                begun[row] = True
                for j in range(total.shape[1]):
                    total[row, j] = gradients[i, j]
