"""Local indices of ids: a radix sort of (id, position) packed into one integer, stable and free of comparisons;
`benchmarks/graphs/planning.py` sets it against the alternatives.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.permutation import bit_length

_MAX_DIGIT_BITS = 11  # a histogram of 16 KiB stays in the first-level cache


def relabel(ids: np.ndarray, bound: int) -> np.ndarray:
    """Turns ids into local indices, in place, and returns what they index: the sorted unique ids, int64 [n].

    Args:
        ids: int64 [m] in [0, bound), contiguous; bit lengths of bound - 1 and of m - 1 sum to at most 63.
    """
    rows = np.empty(ids.size, dtype=np.int64)
    return rows[: _relabel(ids, bit_length(bound - 1), rows)]


def relabel_behind(ids: np.ndarray, first: int, bound: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Likewise, but `ids[:first]`, all different, have the indices 0 to first - 1, and what is new the next ones,
    in ascending order.

    Returns:
        nodes: int64 [n], the id of each local index.
        rows: int64 [n], the same ids sorted.
        places: int64 [n], `rows[places]` is `nodes`.

    Raises:
        ValueError: an id comes twice in `ids[:first]`, or there are too many ids for the bound.
    """
    if bit_length(bound - 1) + bit_length(max(ids.size - 1, 0)) > 63:
        raise ValueError(f"{ids.size:,} ids are too many for {bound:,} nodes")
    nodes, rows, places = (np.empty(ids.size, dtype=np.int64) for _ in range(3))
    count = _relabel_behind(ids, first, bit_length(bound - 1), nodes, rows, places)
    if count < 0:
        raise ValueError("an id comes twice among the first")
    return nodes[:count], rows[:count], places[:count]


@compiled
def _sorted_packed(ids, id_bits, packed):
    """Each id << position bits | its position, in ascending order: in `packed`, int64 [m], or in a new array."""
    size = ids.size
    position_bits = bit_length(size - 1)
    passes = max(1, -(-id_bits // _MAX_DIGIT_BITS))
    digit_bits = -(-id_bits // passes)
    mask = (1 << digit_bits) - 1
    starts = np.zeros((passes, mask + 1), dtype=np.int64)
    other = np.empty(size, dtype=np.int64)
    for i in range(size):
        packed[i] = (ids[i] << position_bits) | i
        for p in range(passes):
            starts[p, (ids[i] >> (p * digit_bits)) & mask] += 1
    for p in range(passes):
        total = 0
        for digit in range(mask + 1):
            count = starts[p, digit]
            starts[p, digit] = total
            total += count
        shift = position_bits + p * digit_bits
        for i in range(size):
            digit = (packed[i] >> shift) & mask
            other[starts[p, digit]] = packed[i]
            starts[p, digit] += 1
        packed, other = other, packed
    return packed


@compiled
def _relabel(ids, id_bits, rows):
    if ids.size == 0:
        return 0
    # `rows` may share memory with the sorted array: this loop writes no element that it has yet to read.
    packed = _sorted_packed(ids, id_bits, rows)
    position_bits = bit_length(ids.size - 1)
    position_mask = (1 << position_bits) - 1
    last, previous = -1, np.int64(-1)
    for i in range(ids.size):
        row, position = packed[i] >> position_bits, packed[i] & position_mask
        if row != previous:
            last += 1
            rows[last] = row
            previous = row
        ids[position] = last
    return last + 1


@compiled
def _relabel_behind(ids, first, id_bits, nodes, rows, places):
    """How many different ids there are; -1: one comes twice among the first."""
    if ids.size == 0:
        return 0
    packed = _sorted_packed(ids, id_bits, rows)
    position_bits = bit_length(ids.size - 1)
    position_mask = (1 << position_bits) - 1
    last, previous, label, new = -1, np.int64(-1), np.int64(-1), first
    for i in range(ids.size):
        row, position = packed[i] >> position_bits, packed[i] & position_mask
        if row != previous:
            # Of equal ids the first position comes first: one among the first `first` is the id's index.
            if position < first:
                label = position
            else:
                label = new
                new += 1
            last += 1
            rows[last] = row
            nodes[label] = row
            places[label] = last
            previous = row
        elif position < first:
            return -1
        ids[position] = label
    return last + 1
