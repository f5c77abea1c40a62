"""Bags that are pooled where their rows lie: a trainer is sent sums, and works with them as if they were rows.

A batch of a table that pools has, in the place of rows, *values*: first its single rows (those that single-valued
features, sequences or other bags name), then, bag by bag, one *partial sum* of each node that has some of the bag's
rows, in the order in which the bag first comes to the node. A bag's values are its partial sums; that there are fewer
of them than the bag has rows only concerns a mean, for which `Jagged.counts` says how many rows it was.
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
from marius_oac.nodes.shards.placement import Placement, Route, group, node_of_keys


@dataclass(frozen=True)
class PooledRoute(Route):
    """Single rows and partial sums of a batch: `order` and `offsets` say which values a node sends.

    Attributes:
        starts: int64 [nodes + 1]: `asked` of node k is `asked[starts[k]:starts[k + 1]]`.
        bags: what sums of these each node is asked for.
    """

    starts: np.ndarray
    bags: tuple[Bags, ...]

    def asked_of(self, node: int) -> tuple[np.ndarray, ...]:
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
    """The values of a batch of one table, and its local rows in terms of these.

    Args:
        pooled: those of the table's bags that are pooled by the nodes; at least one.
        keys: of the batch. ids: int64 [n], the number of each of them among the different keys.
        asked: vocabularies, keys and checks of the m different keys.
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
    """Which of a batch's keys are those of each bag and sequence, by name."""
    spans, at = {}, len(table.singles) * keys.examples
    for name in (*table.bags, *table.sequences):
        spans[name] = slice(at, at + int(keys.offsets[name][-1]))
        at = spans[name].stop
    return spans


def pooled_route(
    placement: Placement, asked: Sequence[np.ndarray], alone: np.ndarray, summed: np.ndarray, offsets: np.ndarray
) -> tuple[PooledRoute, np.ndarray, np.ndarray]:
    """Who is asked for what.

    Args:
        asked: vocabularies uint16 [m], keys int64 [m], checks uint32 [m], all different.
        alone: bool [m], whose rows are asked for; the others all are in a bag.
        summed: int64 [v], numbers of keys; bag i has those from `offsets[i]` to `offsets[i + 1]`, int64 [b + 1].

    Returns:
        The route over the values; int64 [m], the value of each key that is asked for alone, else -1; int64 [b + 1]:
        the partial sums of bag i are the values from there on, counted behind the single ones.
    """
    count, singles = placement.num_nodes, np.flatnonzero(alone)
    nodes = node_of_keys(placement, *asked[:2])
    # A node is told first the keys that are asked for alone.
    told = np.concatenate((singles, np.flatnonzero(~alone)))
    by_node = group(nodes[told], count, told)
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
