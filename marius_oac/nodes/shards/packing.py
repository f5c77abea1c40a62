"""Assigns virtual shards to nodes: bin packing by measured look-up cost, within the nodes' budgets.

ShadowSync (Zheng et al., section 3.1) packs embedding tables this way; virtual shards of tables are finer. Shards are
assigned by longest processing time first (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17,
1969): the costliest shard goes to the node, of those whose budget it fits, that is then loaded least. Then moves and
exchanges relieve the most loaded node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.errors import InputError
from marius_oac.storage.placement import Placement

_STEPS_PER_SHARD = 4
_EVEN = 1e-4  # how far the most loaded node may be above the mean
_OTHERS = 32  # nodes, the least loaded ones, with which an exchange is tried
_GAIN = 1e-9  # of the largest load: what a step must gain at least, so that rounding can't make steps repeat


class LookupCost:
    """Counts how often each virtual shard of a table is looked up, in a first pass over the batches.

    Attributes:
        lookups: int64 [V], unique keys of all batches.
        batches: number of batches that were counted.
    """

    def __init__(self, num_shards: int) -> None:
        self.lookups = np.zeros(num_shards, np.int64)
        self.batches = 0

    def add(self, shards: np.ndarray) -> None:
        """Counts one batch: the shard of each of its unique keys, int64 [n] (`shard_of_keys`, `IdPlaces.shard_of`)."""
        self.lookups += np.bincount(shards, minlength=self.lookups.size)
        self.batches += 1


@dataclass(frozen=True)
class Packed:
    """A placement and its balance.

    Attributes:
        placement: the node of each shard.
        batches: number of batches that were measured; 0: none, and the balance is unknown.
        by_hash: the largest cost of a node by its weight, relative to the mean, if the hash alone placed the shards.
        heaviest: the same with this placement.
    """

    placement: Placement
    batches: int = 0
    by_hash: float = 1.0
    heaviest: float = 1.0

    def figures(self) -> list[float]:
        """Returns all fields but the placement, in order."""
        return [self.batches, self.by_hash, self.heaviest]

    def summary(self) -> dict[str, float]:
        """Returns the metrics of a run's summary; {} where nothing was measured."""
        names = ("packing.batches", "packing.heaviest_by_hash", "packing.heaviest")
        return dict(zip(names, self.figures(), strict=True)) if self.batches else {}


def pack(
    costs: np.ndarray,
    sizes: np.ndarray,
    budgets: Sequence[int],
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    unit: str = "rows",
) -> np.ndarray:
    """Returns the node of each shard, int32 [V], such that the largest cost per weight of a node is small.

    Shards of several tables may be packed together, concatenated.

    Args:
        costs: of each shard, in any unit, float [V], at least 0.
        sizes: of each shard, int [V], in `unit`.
        budgets: of each node, the largest total size of its shards, in `unit`.
        weights: of each node, above 0: the share of the cost that it should take; None: all the same.
        names: of the nodes, for messages; None: their numbers.
        unit: of sizes and budgets, for messages.

    Raises:
        InputError: the shards don't fit.
        ValueError: arrays differ in length or are out of range.
    """
    costs, sizes, limits = np.asarray(costs, np.float64), np.asarray(sizes, np.int64), np.array(budgets, np.int64)
    weighted = np.ones(limits.size) if weights is None else np.asarray(weights, np.float64)
    if costs.ndim != 1 or costs.shape != sizes.shape or weighted.shape != limits.shape or not limits.size:
        raise ValueError(
            f"costs {list(costs.shape)} and sizes {list(sizes.shape)}, or budgets {list(limits.shape)} and weights "
            f"{list(weighted.shape)}, differ in length"
        )
    if not (np.isfinite(costs).all() and (costs >= 0).all() and (sizes >= 0).all() and (limits >= 0).all()):
        raise ValueError("costs, sizes and budgets must be at least 0")
    if not (np.isfinite(weighted).all() and (weighted > 0).all()):
        raise ValueError("weights must be above 0")
    nodes = _by_cost(costs, sizes, limits, weighted)
    if nodes is None:
        nodes = _by_size(sizes, limits)
    if nodes is None:
        raise InputError(_too_small(sizes, limits, names or [str(node) for node in range(limits.size)], unit))
    return _improved(nodes, costs, sizes, limits, weighted)


def loads(costs: np.ndarray, nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Returns the cost of each node, float64 [nodes], from the cost and the node of each shard, both [V]."""
    return np.bincount(nodes, weights=costs, minlength=num_nodes)


def even(weights: Sequence[float], num_shards: int) -> Placement:
    """Returns the placement by the hash alone, before anything was measured: numbers of shards follow the weights."""
    ones = np.ones(num_shards, np.int64)
    return Placement(pack(ones, ones, [num_shards] * len(weights), weights), len(weights))


def heaviest(costs: np.ndarray, nodes: np.ndarray, weights: Sequence[float]) -> float:
    """Returns the largest cost of a node by its weight, relative to the mean; costs, float64 [V], are not all 0."""
    share = loads(costs, nodes, len(weights)) / np.asarray(weights)
    return float(share.max() * np.sum(weights) / costs.sum())


def _by_cost(costs: np.ndarray, sizes: np.ndarray, budgets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    """Packs by longest processing time first; None where a shard fits no node."""
    nodes, room, share = np.empty(costs.size, np.int32), budgets.tolist(), weights.tolist()
    load, filled = [0.0] * len(room), [0] * len(room)
    # Of shards with the same cost the largest goes first, of nodes with the same load the one with the fewest rows.
    # Plain numbers: with a few nodes this takes a tenth of what arrays of them take, with a thousand as much.
    for shard in np.lexsort((-sizes, -costs)).tolist():
        cost, size = costs.item(shard), sizes.item(shard)
        chosen, least = -1, math.inf
        for node, free in enumerate(room):
            after = (load[node] + cost) / share[node]
            if after > least or free < size:
                continue
            if after < least or filled[node] / share[node] < filled[chosen] / share[chosen]:
                chosen, least = node, after
        if chosen < 0:
            return None
        nodes[shard] = chosen
        load[chosen] += cost
        room[chosen] -= size
        filled[chosen] += size
    return nodes


def _by_size(sizes: np.ndarray, budgets: np.ndarray) -> np.ndarray | None:
    """Packs the largest first where it leaves least free, for budgets that are nearly full; None where one fits no
    node."""
    nodes, room = np.empty(sizes.size, np.int32), budgets.copy()
    for shard in np.argsort(-sizes, kind="stable"):
        left = np.where(room >= sizes[shard], room - sizes[shard], np.iinfo(np.int64).max)
        node = int(left.argmin())
        if room[node] < sizes[shard]:
            return None
        nodes[shard] = node
        room[node] -= sizes[shard]
    return nodes


def _improved(
    nodes: np.ndarray, costs: np.ndarray, sizes: np.ndarray, budgets: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Moves a shard off the most loaded node, or exchanges it, while both nodes end up less loaded than that was."""
    nodes = nodes.copy()
    # The last entry is an empty shard on every node: a shard that moves is exchanged for it.
    with_none, size_with_none = np.append(costs, 0.0), np.append(sizes, 0)
    for _ in range(_STEPS_PER_SHARD * nodes.size):
        load = loads(costs, nodes, budgets.size)
        room = budgets - np.bincount(nodes, weights=sizes, minlength=budgets.size).astype(np.int64)
        heavy = int((load / weights).argmax())
        if load[heavy] / weights[heavy] <= (1 + _EVEN) * load.sum() / weights.sum():
            break
        mine = np.flatnonzero(nodes == heavy)
        best: tuple[float, int, int, int] = (load[heavy] / weights[heavy] * (1 - _GAIN), -1, -1, -1)
        for other in np.argsort(load / weights, kind="stable")[: min(_OTHERS, budgets.size - 1)].tolist():
            theirs = np.append(np.flatnonzero(nodes == other), costs.size)
            gain = costs[mine][:, None] - with_none[theirs]
            growth = sizes[mine][:, None] - size_with_none[theirs]
            after = np.maximum((load[heavy] - gain) / weights[heavy], (load[other] + gain) / weights[other])
            after[(growth > room[other]) | (-growth > room[heavy])] = np.inf
            if after.size and after.min() < best[0]:
                i, j = np.unravel_index(after.argmin(), after.shape)
                best = (after[i, j], other, int(mine[i]), int(theirs[j]))
        _, other, shard, exchanged = best
        if other < 0:
            break
        nodes[shard] = other
        if exchanged < costs.size:
            nodes[exchanged] = heavy
    return nodes


def _too_small(sizes: np.ndarray, budgets: np.ndarray, names: Sequence[str], unit: str) -> str:
    each = ", ".join(f"{name}: {budget:,}" for name, budget in zip(names, budgets.tolist(), strict=True))
    total = int(sizes.sum())
    if total > budgets.sum():
        return f"the nodes can hold {int(budgets.sum()):,} {unit} ({each}), but there are {total:,}"
    largest = int(sizes.max())
    return (
        f"{total:,} {unit} in {sizes.size} shards of up to {largest:,} can't be distributed to the nodes ({each}): "
        f"budgets are too tight for whole shards"
    )
