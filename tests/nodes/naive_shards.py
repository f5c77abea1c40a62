"""What places, routes, unique keys and packings mean, in Python integers, lists and dicts."""

import itertools

from tests.data.naive_batches import WORD, bits_at, mix, permuted, stream_key


def shard_of_key(vocabulary: int, key: int, num_shards: int) -> int:
    bits = mix((key & WORD) ^ bits_at(stream_key(0, "shards of keys"), vocabulary))
    return bits * num_shards >> 64


def rows_by_node(size: int, nodes: list[int], num_nodes: int) -> list[list[int]]:
    """The ids that each node has, in the order of its rows."""
    key, num_shards = stream_key(0, "shards of ids"), len(nodes)
    by_position = sorted(range(size), key=lambda each: permuted(each, size, key))
    out: list[list[int]] = [[] for _ in range(num_nodes)]
    for shard, node in enumerate(nodes):
        out[node] += by_position[shard * size // num_shards : (shard + 1) * size // num_shards]
    return out


def grouped(nodes: list[int], num_nodes: int) -> list[list[int]]:
    """The places of each node's part of a batch."""
    return [[place for place, each in enumerate(nodes) if each == node] for node in range(num_nodes)]


def unique(keys: list[tuple]) -> tuple[list[int], list[int]]:
    """The number of each key and the place of each number's first key."""
    numbers: dict[tuple, int] = {}
    local = [numbers.setdefault(key, len(numbers)) for key in keys]
    return local, [keys.index(key) for key in numbers]


def lightest(costs: list[float], sizes: list[int], budgets: list[int], weights: list[float]) -> float | None:
    """The smallest cost per weight that the heaviest node can have, by trying all ways; None where nothing fits."""
    best = None
    for nodes in itertools.product(range(len(budgets)), repeat=len(costs)):
        held, load = [0] * len(budgets), [0.0] * len(budgets)
        for node, cost, size in zip(nodes, costs, sizes, strict=True):
            held[node] += size
            load[node] += cost
        if all(h <= b for h, b in zip(held, budgets, strict=True)):
            heaviest = max(x / w for x, w in zip(load, weights, strict=True))
            best = heaviest if best is None else min(best, heaviest)
    return best
