"""Pooling on shards: nodes send sums of a bag's rows, and the trainer computes with them as if they were rows.

A batch of a table that pools has *values* in place of rows. First come its single rows, those of single-valued
features, sequences or other bags. Then follow, bag by bag, one *partial sum* of each node that has rows of the bag, in
the order in which the bag's rows first name the nodes. A bag's values are its partial sums. Only a mean needs to know
how many rows they are, which `Jagged.counts` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from marius_oac.batches import Jagged, TableIndices
from marius_oac.data.logs.batches import table_indices
from marius_oac.data.logs.tables import FeatureTable, TableKeys
from marius_oac.kernels.cpu import routes as kernels
from marius_oac.nodes.shards.bags import Bags
from marius_oac.storage.placement import Placement, Route, group, node_of_keys


@dataclass(frozen=True)
class PooledRoute(Route):
    """A route of values, single rows and partial sums: `order` and `offsets` say which of them a node sends.

    Attributes:
        starts: int64 [nodes + 1]: `asked` of node k is `asked[starts[k]:starts[k + 1]]`.
        bags: the sums of these that each node is asked for.
    """

    starts: np.ndarray
    bags: tuple[Bags, ...]

    def asked_of(self, node: int) -> tuple[np.ndarray, ...]:
        """See `Route.asked_of`; with the arrays of `Bags`."""
        keys = tuple(each[self.starts[node] : self.starts[node + 1]] for each in self.asked)
        return keys + self.bags[node].arrays()


def pool_table(
    table: FeatureTable,
    pooled: Sequence[str],
    keys: TableKeys,
    ids: np.ndarray,
    asked: Sequence[np.ndarray],
    placement: Placement,
) -> tuple[PooledRoute, TableIndices[np.ndarray]]:
    """Returns the route of a batch's values of one table, and the batch's indices in terms of these values.

    Args:
        table: the table.
        pooled: names of its bags that nodes pool; at least one.
        keys: of the batch.
        ids: int64 [n], the number of each of them among the different keys.
        asked: vocabularies, keys and checks of the m different keys.
        placement: of the table's shards.
    """
    spans = spans_of(table, keys)
    single, ends = np.ones(ids.size, np.bool_), [np.zeros(1, np.int64)]
    for name in pooled:
        single[spans[name]] = False
        ends.append(ends[-1][-1] + keys.offsets[name][1:])
    alone = np.zeros(asked[1].size, np.bool_)
    alone[ids[single]] = True
    summed = np.concatenate([ids[spans[name]] for name in pooled])
    route, places, sums = pooled_route(placement, asked, alone, summed, np.concatenate(ends))
    indices, first = table_indices(table, keys, places[ids]), int(alone.sum())
    bags = dict(zip(table.bags, indices.bags, strict=True))
    for number, name in enumerate(pooled):
        own = sums[number * keys.examples : (number + 1) * keys.examples + 1]
        bags[name] = Jagged(np.arange(first + own[0], first + own[-1]), own - own[0], np.diff(keys.offsets[name]))
    return route, replace(indices, bags=tuple(bags.values()))


def spans_of(table: FeatureTable, keys: TableKeys) -> dict[str, slice]:
    """Returns the slice of a batch's keys that each bag and sequence has, by name."""
    spans, at = {}, len(table.singles) * keys.examples
    for name in (*table.bags, *table.sequences):
        spans[name] = slice(at, at + int(keys.offsets[name][-1]))
        at = spans[name].stop
    return spans


def pooled_route(
    placement: Placement, asked: Sequence[np.ndarray], alone: np.ndarray, summed: np.ndarray, offsets: np.ndarray
) -> tuple[PooledRoute, np.ndarray, np.ndarray]:
    """Groups single rows and sums by node.

    Args:
        placement: of the table's shards.
        asked: vocabularies uint16 [m], keys int64 [m], checks uint32 [m], all different.
        alone: bool [m], the keys whose single rows are wanted; all others are in a bag.
        summed: int64 [v], numbers of keys.
        offsets: int64 [b + 1]: bag i has the keys summed[offsets[i]:offsets[i + 1]].

    Returns:
        The route of the values. Int64 [m], the value of each key whose single row is wanted, -1 for others. Int64
        [b + 1]: where the partial sums of bag i begin, counted from the end of the single rows.
    """
    count, singles = placement.num_nodes, np.flatnonzero(alone)
    nodes = node_of_keys(placement, *asked[:2])
    # Each node's keys begin with those whose single rows are wanted.
    ordered = np.concatenate((singles, np.flatnonzero(~alone)))
    by_node = group(nodes[ordered], count, ordered)
    keys, starts = by_node.asked[0], by_node.offsets
    position = np.empty(alone.size, np.int64)
    position[keys] = np.arange(alone.size) - np.repeat(starts[:-1], np.diff(starts))
    places = np.full(alone.size, -1, np.int64)
    places[singles] = np.arange(singles.size)

    values, sums, ends = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64), np.zeros_like(offsets)
    kernels.count_sums(summed, offsets, nodes, values[1:], sums[1:], ends)
    values, sums = np.cumsum(values), np.cumsum(sums)
    index, begins = np.empty(summed.size, np.int32), np.empty(sums[-1], np.int64)
    order = np.empty(sums[-1], np.int64)
    kernels.lay_out_sums(summed, offsets, nodes, position, values[:-1].copy(), sums[:-1].copy(), index, begins, order)

    own_singles = group(nodes[singles], count)
    parts, bags = [], []
    for node in range(count):
        first, last, sent = values[node], values[node + 1], slice(sums[node], sums[node + 1])
        mine = own_singles.places(node)
        parts += [mine, singles.size + order[sent]]
        ahead = np.append(begins[sent], last) - first
        bags.append(Bags(mine.size, index[first:last], ahead.astype(np.int32)))
    route = PooledRoute(
        order=np.concatenate(parts),
        offsets=own_singles.offsets + sums,
        asked=tuple(each[keys] for each in asked),
        starts=starts,
        bags=tuple(bags),
    )
    return route, places, ends
