"""Compiled operations of gradient aggregation: weighted sums of a vector, and of rows under an open-addressed set.

Everything is float32, in the order in which gradients arrive. Nothing here is checked: see `aggregator`.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import mix


@compiled
def add_vector(gradient, weight, begun, total):
    """`total += weight * gradient`, float32 [n]; the first one is assigned."""
    if begun:
        for i in range(total.size):
            total[i] += weight * gradient[i]
    else:
        for i in range(total.size):
            total[i] = weight * gradient[i]


@compiled
def slot_of(row, slots, rows):
    """The index in `slots` of a row's place + 1, or of the 0 where it would be put (linear probing)."""
    mask = slots.size - 1
    slot = np.int64(mix(np.uint64(row)) & np.uint64(mask))
    while slots[slot] and rows[slots[slot] - 1] != row:
        slot = (slot + 1) & mask
    return slot


@compiled
def place_rows(asked, slots, rows, count, places):
    """Gives each row a place, in order of first arrival; returns how many places are in use then.

    Args:
        asked: int64 [n].
        slots: int64 [a power of two], more than the places: place + 1, or 0.
        rows: int64 [enough], the row of each place.
        count: places in use.
        places: int64 [n], filled in.
    """
    for i in range(asked.size):
        slot = slot_of(asked[i], slots, rows)
        if not slots[slot]:
            rows[count] = asked[i]
            count += 1
            slots[slot] = count
        places[i] = slots[slot] - 1
    return count


@compiled
def add_rows(places, gradients, weights, holders, kept, totals):
    """Adds weight * gradient to the total of each place that weighs anything; the first one is assigned.

    Args:
        places: int64 [n], all different. gradients: float32 [n, D]. weights: float32 [n].
        holders, kept: int64 [places], counted up: gradients that have the row, and those of them that weigh anything.
        totals: float32 [places, D].
    """
    for i in range(places.size):
        place, weight = places[i], weights[i]
        holders[place] += 1
        if weight == 0:  # not multiplied: a gradient that is excluded may be infinite
            continue
        kept[place] += 1
        if kept[place] > 1:
            for j in range(totals.shape[1]):
                totals[place, j] += weight * gradients[i, j]
        else:
            for j in range(totals.shape[1]):
                totals[place, j] = weight * gradients[i, j]


@compiled
def divided(places, totals, divisors, out):
    """`out[i] = totals[places[i]] / divisors[i]`: float32 [n, D] of [places, D] and float32 [n]."""
    for i in range(places.size):
        place, divisor = places[i], divisors[i]
        for j in range(totals.shape[1]):
            out[i, j] = totals[place, j] / divisor
