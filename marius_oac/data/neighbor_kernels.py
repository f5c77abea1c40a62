"""Compiled operations on neighbourhoods: the counting sort that gathers them, and drawing from them.

An *entry* is one row of an array [M, 2 or 3]: neighbour, relation where there are any, number of the edge. Nothing
here is checked: see `neighbors` and `sampling`.
"""

from __future__ import annotations

import numpy as np

from marius_oac.data.compiled import compiled
from marius_oac.data.random import below, bits_at, fold, mix

ANY = -1
"""The fan-out that takes all neighbours."""

_FREE = -1


@compiled
def make_records(edges, first, num_relations, incoming, outgoing, records):
    """A record [node, entry] per edge and direction, in the edges' order: records [len(edges) * directions, 3 or 4].

    Args:
        first: the number of edges[0].
        num_relations: added to the relation of an edge that is followed from its head, where both ways are.
    """
    last, end = edges.shape[1] - 1, records.shape[1] - 1
    at = 0
    for i in range(edges.shape[0]):
        if incoming:
            records[at, 0], records[at, 1], records[at, end] = edges[i, last], edges[i, 0], first + i
            if last == 2:
                records[at, 2] = edges[i, 1]
            at += 1
        if outgoing:
            records[at, 0], records[at, 1], records[at, end] = edges[i, 0], edges[i, last], first + i
            if last == 2:
                records[at, 2] = np.int64(edges[i, 1]) + (num_relations if incoming else 0)
            at += 1


@compiled
def count_groups(edges, group_nodes, incoming, outgoing, counts):
    """Adds to counts, int64 [G], how many records `make_records` makes for each group of `group_nodes` nodes."""
    last = edges.shape[1] - 1
    for i in range(edges.shape[0]):
        if incoming:
            counts[edges[i, last] // group_nodes] += 1
        if outgoing:
            counts[edges[i, 0] // group_nodes] += 1


@compiled
def group_records(records, group_nodes, places, out):
    """Sorts records by group, stably: places, int64 [G], is where each group's first one goes, and is counted up."""
    for i in range(records.shape[0]):
        group = records[i, 0] // group_nodes
        for column in range(records.shape[1]):
            out[places[group], column] = records[i, column]
        places[group] += 1


@compiled
def count_nodes(records, first_node, counts):
    """Adds to counts, int64 [nodes of a group], how many records each node has."""
    for i in range(records.shape[0]):
        counts[records[i, 0] - first_node] += 1


@compiled
def scatter_entries(records, first_node, places, entries):
    """Puts each record's entry where `places` says, which is counted up."""
    for i in range(records.shape[0]):
        node = records[i, 0] - first_node
        for column in range(entries.shape[1]):
            entries[places[node], column] = records[i, column + 1]
        places[node] += 1


@compiled
def find_neighborhoods(offsets, nodes, fanout, starts, degrees):
    """Where each node's entries begin and how many there are, int64 [n]; returns how many at most are drawn of all."""
    total = 0
    for i in range(nodes.size):
        start = offsets[nodes[i]]
        degree = offsets[nodes[i] + 1] - start
        starts[i], degrees[i] = start, degree
        total += degree if fanout == ANY else min(degree, fanout)
    return total


@compiled
def fill_set(members, slots):
    """Puts integers >= 0 into an open-addressed set: slots int64 [a power of two, more than the members], all -1."""
    mask = slots.size - 1
    for i in range(members.size):
        slot = np.int64(mix(np.uint64(members[i])) & np.uint64(mask))
        while slots[slot] != _FREE and slots[slot] != members[i]:
            slot = (slot + 1) & mask
        slots[slot] = members[i]


@compiled
def _holds(slots, member):
    mask = slots.size - 1
    slot = np.int64(mix(np.uint64(member)) & np.uint64(mask))
    while slots[slot] != _FREE:
        if slots[slot] == member:
            return True
        slot = (slot + 1) & mask
    return False


@compiled
def draw_neighbors(key, entries, nodes, starts, degrees, fanout, excluded, offsets, neighbors, relations, numbers):
    """Draws from each node's entries but for the excluded ones: all, if there are no more than `fanout`, else so many,
    every set of them with the same probability. Depends on the key, the node and its entries alone.

    Args:
        key: uint64.
        entries: int32 or int64 [M, 2 or 3]. nodes, starts, degrees: of `find_neighborhoods`.
        excluded: numbers of edges as `fill_set` makes it, or int64 [0].
        offsets: int64 [n + 1], filled in from offsets[0] on: node i has [offsets[i], offsets[i + 1]) of what follows.
        neighbors, relations, numbers: int64 [at least as many as are drawn], relations [0] where there are none.
    """
    size = 2
    while size < 2 * fanout:
        size *= 2
    drawn = np.empty(size, dtype=np.int64)
    at = offsets[0]
    for i in range(nodes.size):
        start, degree = starts[i], degrees[i]
        if fanout == ANY or degree <= fanout:
            at = _take(entries, start, degree, excluded, at, neighbors, relations, numbers)
        else:
            node_key, taken = fold(key, nodes[i]), -1
            if degree > 2 * fanout:
                taken = _draw(
                    node_key, entries, start, degree, fanout, excluded, drawn, at, neighbors, relations, numbers
                )
            if taken < 0:
                # A key of its own: bits that were looked at would not be independent of having come here.
                reservoir_key = fold(node_key, 0)
                taken = _pass(
                    reservoir_key, entries, start, degree, fanout, excluded, at, neighbors, relations, numbers
                )
            at = taken
        offsets[i + 1] = at


@compiled
def _put(entries, entry, at, neighbors, relations, numbers):
    neighbors[at] = entries[entry, 0]
    if relations.size:
        relations[at] = entries[entry, 1]
    numbers[at] = entries[entry, entries.shape[1] - 1]


@compiled
def _take(entries, start, degree, excluded, at, neighbors, relations, numbers):
    """All of them; returns where the next node's begin."""
    last = entries.shape[1] - 1
    for entry in range(start, start + degree):
        if excluded.size == 0 or not _holds(excluded, entries[entry, last]):
            _put(entries, entry, at, neighbors, relations, numbers)
            at += 1
    return at


@compiled
def _draw(key, entries, start, degree, fanout, excluded, drawn, at, neighbors, relations, numbers):
    """Draws places until `fanout` different ones that aren't excluded are found; -1: too many draws were in vain.

    Every order of the entries that aren't excluded is as probable as any other, however many draws it took.
    """
    last, mask = entries.shape[1] - 1, drawn.size - 1
    drawn[:] = _FREE
    found = 0
    for draw in range(4 * fanout + 16):
        place = below(bits_at(key, draw), degree)
        slot = place & mask
        while drawn[slot] != _FREE and drawn[slot] != place:
            slot = (slot + 1) & mask
        if drawn[slot] == place or (excluded.size and _holds(excluded, entries[start + place, last])):
            continue
        drawn[slot] = place
        _put(entries, start + place, at + found, neighbors, relations, numbers)
        found += 1
        if found == fanout:
            return at + found
    return -1


@compiled
def _pass(key, entries, start, degree, fanout, excluded, at, neighbors, relations, numbers):
    """One pass over all of them with a reservoir (Knuth, The Art of Computer Programming 2, 3.4.2, Algorithm R)."""
    last, seen = entries.shape[1] - 1, 0
    for entry in range(start, start + degree):
        if excluded.size and _holds(excluded, entries[entry, last]):
            continue
        place = seen if seen < fanout else below(bits_at(key, seen), seen + 1)
        seen += 1
        if place < fanout:
            _put(entries, entry, at + place, neighbors, relations, numbers)
    return at + min(seen, fanout)
