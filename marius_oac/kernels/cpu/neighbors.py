"""Compiled operations on neighbourhoods: the counting sort that gathers them, and drawing from them.

An *entry* is one row of an array [M, 2 or 3]: neighbour, relation where there are any, number of the edge. Nothing
here is checked: see `neighbors` and `sampling`.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled, pasted
from marius_oac.kernels.cpu.prefetch import prefetch
from marius_oac.kernels.cpu.random import below, bits_at, fold, mix

ANY = -1
"""The fan-out that takes all neighbours."""

_FREE = -1
_AHEAD = 96  # entries between asking for one and reading it


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
def ascends(offsets, last):
    """Whether offsets, int64 [n], begin with 0, never fall and end with `last`."""
    wrong = offsets[0] != 0 or offsets[-1] != last
    for i in range(1, offsets.size):
        wrong |= offsets[i] < offsets[i - 1]
    return not wrong


@compiled
def in_range(entries, bounds):
    """Whether each column of entries, [n, columns], lies in [0, bounds[column]); bounds uint64."""
    wrong = False
    for i in range(entries.shape[0]):
        for column in range(entries.shape[1]):
            wrong |= np.uint64(np.int64(entries[i, column])) >= bounds[column]
    return not wrong


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


@pasted
def _holds(slots, member):
    mask = slots.size - 1
    slot = np.int64(mix(np.uint64(member)) & np.uint64(mask))
    while slots[slot] != _FREE and slots[slot] != member:
        slot = (slot + 1) & mask
    return slots[slot] == member


@compiled
def draw_neighbors(
    key, entries, nodes, starts, degrees, fanout, ends, excluded, offsets, neighbors, relations, numbers
):
    """Draws up to `fanout` of each node's entries, without replacement and without the excluded ones.

    Every set of `fanout` entries has the same probability; a node with fewer gets all. The result depends on the key,
    the node and its entries alone. First places are drawn, which for most nodes reads no entry; then the entries are
    read, prefetched. It calls nothing that takes an array, for which Numba would count references, at half the speed.

    Args:
        key: uint64.
        entries: int32 or int64 [M, 2 or 3]. nodes, starts, degrees: of `find_neighborhoods`.
        ends, excluded: nodes with excluded edges, and the numbers of these, as `fill_set` makes them.
        offsets: int64 [n + 1], filled in from offsets[0] on: node i has [offsets[i], offsets[i + 1]) of what follows.
        neighbors, relations, numbers: int64 [at least as many as are drawn], relations [0] where there are none.
    """
    last, size = entries.shape[1] - 1, 2
    while size < 2 * fanout:
        size *= 2
    drawn = np.empty(size, dtype=np.int64)
    at = offsets[0]
    for i in range(nodes.size):
        start, degree = starts[i], degrees[i]
        checked = _holds(ends, nodes[i])
        if fanout == ANY or degree <= fanout:
            for entry in range(start, start + degree):
                if not checked or not _holds(excluded, entries[entry, last]):
                    numbers[at] = entry
                    at += 1
            offsets[i + 1] = at
            continue
        node_key, found = fold(key, nodes[i]), 0
        if degree > 2 * fanout:
            # Draws until enough different ones are found. Every order of the entries that aren't excluded is equally
            # probable, however many draws are rejected; after too many draws the reservoir below is used.
            drawn[:] = _FREE
            for draw in range(4 * fanout + 16):
                place = below(bits_at(node_key, draw), degree)
                slot = place & (size - 1)
                while drawn[slot] != _FREE and drawn[slot] != place:
                    slot = (slot + 1) & (size - 1)
                if drawn[slot] == place or (checked and _holds(excluded, entries[start + place, last])):
                    continue
                drawn[slot] = place
                numbers[at + found] = start + place
                found += 1
                if found == fanout:
                    break
        if found < fanout:
            # One pass over all of them with a reservoir (Knuth, The Art of Computer Programming 2, 3.4.2, Algorithm R),
            # with another key: bits that were used above are not independent of having come here.
            pass_key, seen = fold(node_key, 0), 0
            for entry in range(start, start + degree):
                if checked and _holds(excluded, entries[entry, last]):
                    continue
                place = seen if seen < fanout else below(bits_at(pass_key, seen), seen + 1)
                seen += 1
                if place < fanout:
                    numbers[at + place] = entry
            found = min(seen, fanout)
        at += found
        offsets[i + 1] = at
    for i in range(offsets[0], at):
        prefetch(entries, numbers[min(i + _AHEAD, at - 1)], 0)
        entry = numbers[i]
        neighbors[i] = entries[entry, 0]
        if relations.size:
            relations[i] = entries[entry, 1]
        numbers[i] = entries[entry, last]
