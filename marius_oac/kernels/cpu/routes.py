"""Compiled operations on places: the hash of a key, the inverse of a permutation, routes, unique keys.

A node's number is int32, everything else int64 or a field's own type. Nothing here is checked: see `shards`.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.permutation import bit_length, permuted, round_keys, unpermuted
from marius_oac.kernels.cpu.random import below, bits_at, mix


@compiled
def key_bits(salt, vocabulary, key):
    """64 well mixed bits of a key: for each vocabulary a permutation of the keys."""
    # By way of int64, because without the JIT a negative key may be one of Python's integers.
    return mix(np.uint64(np.int64(key)) ^ bits_at(salt, vocabulary))


@compiled
def positions_of(key, size, ids, out):
    """Each id's image under the permutation of [0, size) that belongs to `key`."""
    keys, bits = round_keys(key), bit_length(size - 1)
    for i in range(ids.size):
        out[i] = permuted(ids[i], size, bits, keys)


@compiled
def ids_at(key, size, positions, out):
    """Undoes `positions_of`."""
    keys, bits = round_keys(key), bit_length(size - 1)
    for i in range(positions.size):
        out[i] = unpermuted(positions[i], size, bits, keys)


@compiled
def key_shards(salt, num_shards, vocabularies, keys, out):
    """Fills in the shard of each (vocabulary, key), `out` [n]."""
    for i in range(keys.size):
        out[i] = below(key_bits(salt, vocabularies[i], keys[i]), num_shards)


@compiled
def id_shards(key, size, num_shards, ids, out):
    """The shard of each id: shard v has the positions floor(v size / V) to floor((v + 1) size / V) - 1."""
    positions_of(key, size, ids, out)
    for i in range(ids.size):
        out[i] = ((out[i] + 1) * num_shards - 1) // size


@compiled
def id_places(key, size, node_of, base_of, ids, nodes, rows):
    """The node of each id and its row there; a row is `base_of` its shard, int64 [V], + its position."""
    keys, bits, num_shards = round_keys(key), bit_length(size - 1), node_of.size
    for i in range(ids.size):
        position = permuted(ids[i], size, bits, keys)
        shard = ((position + 1) * num_shards - 1) // size
        nodes[i] = node_of[shard]
        rows[i] = base_of[shard] + position


@compiled
def key_nodes(salt, node_of, vocabularies, keys, nodes):
    """Fills in the node of each (vocabulary, key), `nodes` int32 [n]; `node_of` int32 [V] has each shard's node."""
    for i in range(keys.size):
        nodes[i] = node_of[below(key_bits(salt, vocabularies[i], keys[i]), node_of.size)]


@compiled
def group(nodes, order, offsets):
    """Sorts places by node, those of a node in their order: `order` int64 [n]; `offsets` int64 [nodes + 1], of 0s."""
    for i in range(nodes.size):
        offsets[nodes[i] + 1] += 1
    for node in range(1, offsets.size):
        offsets[node] += offsets[node - 1]
    following = offsets.copy()
    for i in range(nodes.size):
        order[following[nodes[i]]] = i
        following[nodes[i]] += 1


@compiled
def count_sums(ids, offsets, nodes, num_values, num_sums, ends):
    """Adds to int64 [nodes], for each node, the number of bags' values stored there and the number of bags with any.

    Args:
        ids: int64 [v], numbers of keys; bag i has those from `offsets[i]` to `offsets[i + 1]`, int64 [b + 1].
        nodes: int32, of each key.
        ends: int64 [b + 1], filled in from 1 on: partial sums of the bags up to there.
    """
    last, total = np.full(num_values.size, -1, np.int64), 0
    for bag in range(offsets.size - 1):
        for at in range(offsets[bag], offsets[bag + 1]):
            node = nodes[ids[at]]
            num_values[node] += 1
            if last[node] != bag:
                last[node] = bag
                num_sums[node] += 1
                total += 1
        ends[bag + 1] = total


@compiled
def lay_out_sums(ids, offsets, nodes, position, at_value, at_sum, index, begins, order):
    """Groups what `count_sums` counted by node.

    Args:
        position: int64, of each key among those sent to its node.
        at_value, at_sum: int64 [nodes], where each node's values and sums begin; overwritten.
        index: int32 [v], filled in: the positions, node by node, bag by bag.
        begins, order: int64 [sums], filled in: where in `index` each sum begins; its number over all nodes.
    """
    last, total = np.full(at_value.size, -1, np.int64), 0
    for bag in range(offsets.size - 1):
        for at in range(offsets[bag], offsets[bag + 1]):
            key = ids[at]
            node = nodes[key]
            if last[node] != bag:
                last[node] = bag
                begins[at_sum[node]] = at_value[node]
                order[at_sum[node]] = total
                at_sum[node] += 1
                total += 1
            index[at_value[node]] = position[key]
            at_value[node] += 1
