"""Known true answers, which the filtered setting leaves out of a ranking (Bordes et al., "Translating embeddings for
modeling multi-relational data", NeurIPS 2013, section 4.1).

Only answers to the queries are kept: for each side a hash table of the queries' (node, relation) pairs, and the answers
to these. All edges of all splits are read twice, first to count and then to store the answers, so memory is O(queries +
answers) for any number of edges. Queries with the same pair share their answers, since one popular relation could
otherwise need (queries x answers) entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.data.graphs.negatives import as_kernel_input
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import mix, wrapping
from marius_oac.types import Side

CHUNK_EDGES = 1 << 20


@dataclass(frozen=True)
class Answers:
    """The known answers of one side; int64.

    Attributes:
        groups: [Q], the group g of each query, which is one (node, relation) pair.
        own: [Q], each query's own answer, which may be one of the known ones.
        offsets: [G + 1]: the answers of group g are `ids[offsets[g] : offsets[g + 1]]`, ascending and unique.
        ids: [A].
    """

    groups: np.ndarray
    own: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray


class KnownAnswers:
    """The answers known to be true, for every query edge and side. Make it with `build`.

    Attributes:
        sides: the answers, by `Side`.
        num_queries: Q, the number of query edges.
    """

    def __init__(self, sides: Sequence[Answers]) -> None:
        self.sides = tuple(sides)
        self.num_queries = len(sides[Side.TAIL].own)

    @classmethod
    def build(
        cls, edge_sets: Iterable[np.ndarray], queries: np.ndarray, num_relations: int, chunk: int = CHUNK_EDGES
    ) -> KnownAnswers:
        """Collects the answers.

        Args:
            edge_sets: true edges (all splits), each int32 or int64 [E, 3] or [E, 2], C order. Memmaps are read twice,
                in order. Edges may repeat.
            queries: the edges to rank, int32 or int64 [Q, 3] or [Q, 2]; they need not be in the edge sets.
            num_relations: 0: a relation column is ignored (as decoder `dot` does).
            chunk: the number of edges after which a signal can interrupt.

        Raises:
            ValueError: an array has another type or shape, or no relations although num_relations is not 0.
        """
        sets = [as_kernel_input(edges) for edges in edge_sets]
        queries = as_kernel_input(np.ascontiguousarray(queries))
        for edges in (*sets, queries):
            if num_relations and edges.shape[1] != 3:
                raise ValueError(f"edges have {edges.shape[1]} columns, but the graph has {num_relations} relations")
        pieces = [edges[start : start + chunk] for edges in sets for start in range(0, len(edges), chunk)]
        return cls([_collect(pieces, queries, side, num_relations > 0) for side in Side])

    def others(self, side: Side) -> tuple[np.ndarray, np.ndarray]:
        """The known answers of the queries, except each query's own.

        Args:
            side: the end to predict: `Side.TAIL` for (head, relation, ?).

        Returns:
            offsets int64 [num_queries + 1] and ids int64 [offsets[-1]]: those of query i are
            `ids[offsets[i] : offsets[i + 1]]`, ascending and unique.
        """
        answers = self.sides[side]
        groups, own = answers.groups, answers.own
        offsets = np.empty(len(groups) + 1, dtype=np.int64)
        _count_others(groups, own, answers.offsets, answers.ids, offsets)
        ids = np.empty(offsets[-1], dtype=np.int64)
        _copy_others(groups, own, answers.offsets, answers.ids, offsets, ids)
        return offsets, ids


@wrapping
def _collect(pieces: Sequence[np.ndarray], queries: np.ndarray, side: Side, related: bool) -> Answers:
    last = queries.shape[1] - 1
    given, asked = (0, last) if side is Side.TAIL else (last, 0)
    nodes = queries[:, given].astype(np.int64)
    relations = queries[:, 1].astype(np.int64) if related else np.zeros(len(queries), dtype=np.int64)
    table = np.full(1 << (2 * len(queries) + 1).bit_length(), -1, dtype=np.int64)
    groups = np.empty(len(queries), dtype=np.int64)
    num_groups = _group(nodes, relations, table, groups)
    forward = side is Side.TAIL
    offsets = np.zeros(num_groups + 2, dtype=np.int64)
    for edges in pieces:
        _count(edges, forward, related, nodes, relations, table, groups, offsets)
    np.cumsum(offsets, out=offsets)
    # offsets[g + 1] is where group g begins. Storing its answers moves it to where the group ends.
    ids = np.empty(offsets[-1], dtype=np.int64)
    for edges in pieces:
        _place(edges, forward, related, nodes, relations, table, groups, offsets, ids)
    offsets = offsets[:-1]
    for g in np.flatnonzero(np.diff(offsets) > 1):
        ids[offsets[g] : offsets[g + 1]].sort()
    kept = _drop_repeated(offsets, ids)
    return Answers(groups, queries[:, asked].astype(np.int64), offsets, ids[:kept].copy())


@compiled
def _find(node, relation, nodes, relations, table):
    """The slot of a query with this node and relation, or the empty slot (-1) for it."""
    mask = np.uint64(table.size - 1)
    slot = mix(np.uint64(node) ^ mix(np.uint64(relation))) & mask
    while True:
        query = table[slot]
        if query < 0 or (nodes[query] == node and relations[query] == relation):
            return np.int64(slot)
        slot = (slot + np.uint64(1)) & mask


@compiled
def _group(nodes, relations, table, groups):
    """Numbers the distinct (node, relation) pairs from 0 in order of appearance. The table holds their first query."""
    num_groups = 0
    for q in range(nodes.size):
        slot = _find(nodes[q], relations[q], nodes, relations, table)
        if table[slot] < 0:
            table[slot] = q
            groups[q] = num_groups
            num_groups += 1
        else:
            groups[q] = groups[table[slot]]
    return num_groups


@compiled
def _group_of(edge, forward, related, nodes, relations, table, groups):
    """The group that an edge, [2 or 3], answers; -1: none."""
    node = edge[0] if forward else edge[edge.size - 1]
    relation = edge[1] if related else 0
    query = table[_find(node, relation, nodes, relations, table)]
    return groups[query] if query >= 0 else -1


@compiled
def _count(edges, forward, related, nodes, relations, table, groups, counts):
    for i in range(edges.shape[0]):
        group = _group_of(edges[i], forward, related, nodes, relations, table, groups)
        if group >= 0:
            counts[group + 2] += 1


@compiled
def _place(edges, forward, related, nodes, relations, table, groups, ends, ids):
    for i in range(edges.shape[0]):
        group = _group_of(edges[i], forward, related, nodes, relations, table, groups)
        if group >= 0:
            ids[ends[group + 1]] = edges[i, edges.shape[1] - 1] if forward else edges[i, 0]
            ends[group + 1] += 1


@compiled
def _drop_repeated(offsets, ids):
    """Removes repeated answers of each group, adapts the offsets, and returns how many answers are left."""
    kept, start = 0, 0
    for group in range(offsets.size - 1):
        end = offsets[group + 1]
        for i in range(start, end):
            if i == start or ids[i] != ids[i - 1]:
                ids[kept] = ids[i]
                kept += 1
        offsets[group + 1] = kept
        start = end
    return kept


@compiled
def _count_others(groups, own, starts, ids, offsets):
    offsets[0] = 0
    for q in range(groups.size):
        start, end = starts[groups[q]], starts[groups[q] + 1]
        at = start + np.searchsorted(ids[start:end], own[q])
        known = at < end and ids[at] == own[q]
        offsets[q + 1] = offsets[q] + end - start - (1 if known else 0)


@compiled
def _copy_others(groups, own, starts, ids, offsets, out):
    for q in range(groups.size):
        to = offsets[q]
        for i in range(starts[groups[q]], starts[groups[q] + 1]):
            if ids[i] != own[q]:
                out[to] = ids[i]
                to += 1
