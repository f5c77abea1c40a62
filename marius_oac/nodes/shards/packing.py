"""Virtual shards to nodes: bin packing on measured look-up cost, within the nodes' budgets.

ShadowSync (Zheng et al., section 3.1) packs embedding tables so; virtual shards of tables are finer. The longest
processing time comes first (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969): the
costliest shard goes to the node that is then loaded least and has room for it. Moves and exchanges that relieve the
heaviest node follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.errors import InputError
from marius_oac.nodes.shards.placement import NUM_SHARDS, Placement

_STEPS_PER_SHARD = 4
_GAIN = 1e-9  # of the heaviest load: what a step must win at least, so that rounding can't go round in circles


class LookupCost:
    """How often each virtual shard of a table is looked up, counted in a first pass over the batches.

    Attributes:
        lookups: int64 [V], unique keys of all batches. batches: how many were counted.
    """

    def __init__(self, num_shards: int = NUM_SHARDS) -> None:
        self.lookups = np.zeros(num_shards, np.int64)
        self.batches = 0

    def add(self, shards: np.ndarray) -> None:
        """Counts one batch: the shard of each of its unique keys, int64 [n] (`shard_of_keys`, `IdPlaces.shard_of`)."""
        self.lookups += np.bincount(shards, minlength=self.lookups.size)
        self.batches += 1


@dataclass(frozen=True)
class Packed:
    """A placement, and what is known of it.

    Attributes:
        batches: that were measured for it; 0: none, and nothing more is known.
        by_hash, heaviest: the heaviest node's cost by its weight, of the mean, if the hash alone placed the shards, and
            as they are placed.
    """

    placement: Placement
    batches: int = 0
    by_hash: float = 1.0
    heaviest: float = 1.0

    def figures(self) -> list[float]:
        """All but the placement, in order."""
        return [self.batches, self.by_hash, self.heaviest]

    def summary(self) -> dict[str, float]:
        """For a run's summary."""
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
    """The node of each shard, int32 [V]: the heaviest node's cost per weight is small. Shards of several tables may be
    packed together, laid end to end.

    Args:
        costs: of each shard, in any unit, float [V], at least 0.
        sizes: of each shard, int [V]. budgets: of each node; what it holds is at most that. Both in `unit`.
        weights: of each node, above 0: what share of the cost it should take; None: all the same.
        names: of the nodes, for messages; None: their numbers.

    Raises:
        InputError: the shards don't fit.
        ValueError: arrays that don't fit together or are out of range.
    """
    costs, sizes, room = np.asarray(costs, np.float64), np.asarray(sizes, np.int64), np.array(budgets, np.int64)
    weighted = np.ones(room.size) if weights is None else np.asarray(weights, np.float64)
    if costs.ndim != 1 or costs.shape != sizes.shape or weighted.shape != room.shape or not room.size:
        raise ValueError(
            f"costs {list(costs.shape)} and sizes {list(sizes.shape)}, or budgets {list(room.shape)} and weights "
            f"{list(weighted.shape)}, differ in length"
        )
    if not (np.isfinite(costs).all() and (costs >= 0).all() and (sizes >= 0).all() and (room >= 0).all()):
        raise ValueError("costs, sizes and budgets must be at least 0")
    if not (np.isfinite(weighted).all() and (weighted > 0).all()):
        raise ValueError("weights must be above 0")
    nodes = _by_cost(costs, sizes, room, weighted)
    if nodes is None:
        nodes = _by_size(sizes, room)
    if nodes is None:
        raise InputError(_too_small(sizes, room, names or [str(node) for node in range(room.size)], unit))
    return _improved(nodes, costs, sizes, room, weighted)


def loads(costs: np.ndarray, nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Cost of each node, float64 [nodes]."""
    return np.bincount(nodes, weights=costs, minlength=num_nodes)


def even(weights: Sequence[float]) -> Placement:
    """Shards in numbers by the nodes' weights: what the hash alone gives, before anything was measured."""
    ones = np.ones(NUM_SHARDS, np.int64)
    return Placement(pack(ones, ones, [NUM_SHARDS] * len(weights), weights), len(weights))


def heaviest(costs: np.ndarray, nodes: np.ndarray, weights: Sequence[float]) -> float:
    """The heaviest node's cost by its weight, of the mean; costs, float64 [V], that are not all 0."""
    share = loads(costs, nodes, len(weights)) / np.asarray(weights)
    return float(share.max() * np.sum(weights) / costs.sum())


def _by_cost(costs: np.ndarray, sizes: np.ndarray, budgets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    """Longest processing time first; None where a shard finds no room."""
    nodes, room, load = np.empty(costs.size, np.int32), budgets.copy(), np.zeros(budgets.size)
    filled = np.zeros(budgets.size)
    # Of shards that cost nothing, the larger ones first; of nodes with the same load, the one that holds least.
    for shard in np.lexsort((-sizes, -costs)):
        fits = room >= sizes[shard]
        if not fits.any():
            return None
        after = np.where(fits, (load + costs[shard]) / weights, np.inf)
        node = int(np.lexsort((filled / weights, after))[0])
        nodes[shard] = node
        load[node] += costs[shard]
        room[node] -= sizes[shard]
        filled[node] += sizes[shard]
    return nodes


def _by_size(sizes: np.ndarray, budgets: np.ndarray) -> np.ndarray | None:
    """The largest first, where it leaves least room: where budgets are nearly full. None where one finds no room."""
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
    """Moves a shard off the heaviest node, or exchanges it for another's, while both end up lighter than it was."""
    nodes = nodes.copy()
    # The last one is no shard: what a shard that simply moves is exchanged for. It may be on any node.
    with_none, size_with_none = np.append(costs, 0.0), np.append(sizes, 0)
    for _ in range(_STEPS_PER_SHARD * nodes.size):
        load = loads(costs, nodes, budgets.size)
        room = budgets - np.bincount(nodes, weights=sizes, minlength=budgets.size).astype(np.int64)
        heavy = int((load / weights).argmax())
        mine = np.flatnonzero(nodes == heavy)
        best = (load[heavy] / weights[heavy] * (1 - _GAIN), -1, -1, -1)
        for other in range(budgets.size):
            theirs = np.append(np.flatnonzero(nodes == other), costs.size)
            if other == heavy:
                continue
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
        return f"the nodes have room for {int(budgets.sum()):,} {unit} ({each}), {total:,} are to be placed"
    largest = int(sizes.max())
    return (
        f"{total:,} {unit} in {sizes.size} shards of up to {largest:,} can't be distributed to the nodes ({each}): "
        f"budgets are too tight for whole shards"
    )
