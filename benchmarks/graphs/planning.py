"""Time to plan a batch on one core, and what turning ids into local indices takes of it, against the alternatives.

    python -m benchmarks.graphs.planning
    python -m benchmarks.graphs.planning --nodes 100000000 --edges 20000000

Two settings: 1,000 edges with 500 negatives per side (3,000 ids), and 10,000 edges in 10 chunks of 100 negatives per
side (22,000 ids). Figures are medians over `--repeats` batches in milliseconds; contestants take turns batch by batch,
so a busy machine slows all alike, and so does the memory that one of them hands back to the system.

Relabel: `ours` (radix sort of packed ids), `np.sort` of packed ids, a hash table with a sort of the unique ids, and
`np.unique(return_inverse=True)`, the plain way. The limit is one copy of the ids.
Plan: `ours`, and `NumPy`: a slice of a shuffled array of edge numbers (shuffled beforehand), rng.integers, np.unique.
The limit takes ready edge numbers and ready negatives: one gather of the edges and one copy of the ids.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import EdgePlanner, relabel
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import mix

SETTINGS = ({"batch_size": 1000, "count": 500, "chunks": 1}, {"batch_size": 10_000, "count": 100, "chunks": 10})
NUM_RELATIONS = 1000


def by_unique(ids: np.ndarray, bound: int) -> np.ndarray:
    rows, ids[:] = np.unique(ids, return_inverse=True)
    return rows


def by_sort(ids: np.ndarray, bound: int) -> np.ndarray:
    position_bits = (len(ids) - 1).bit_length()
    packed = (ids << position_bits) | np.arange(len(ids))
    packed.sort()
    rows = np.empty_like(ids)
    return rows[: _number(packed, position_bits, rows, ids)]


def by_hash(ids: np.ndarray, bound: int) -> np.ndarray:
    rows = np.empty_like(ids)
    table = np.full(1 << (2 * len(ids)).bit_length(), -1)
    rows = rows[: _first_seen(ids, table, rows)]
    order = np.argsort(rows)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    ids[:] = place[ids]
    return rows[order]


@compiled
def _number(packed, position_bits, rows, ids):
    last, previous = -1, np.int64(-1)
    for i in range(packed.size):
        row = packed[i] >> position_bits
        if row != previous:
            last += 1
            rows[last] = previous = row
        ids[packed[i] & ((1 << position_bits) - 1)] = last
    return last + 1


@compiled
def _first_seen(ids, table, rows):
    mask = np.uint64(table.size - 1)
    found = 0
    for i in range(ids.size):
        slot = mix(np.uint64(ids[i])) & mask
        while table[slot] >= 0 and rows[table[slot]] != ids[i]:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            table[slot] = found
            rows[found] = ids[i]
            found += 1
        ids[i] = table[slot]
    return found


class NumpyPlanner:
    """The plain way, with all edge numbers shuffled in memory."""

    def __init__(self, edges: np.ndarray, num_nodes: int, setting: dict[str, int]) -> None:
        self.edges, self.num_nodes, self.setting = edges, num_nodes, setting
        self.rng = np.random.default_rng(0)
        self.order = self.rng.permutation(len(edges))
        self.drawn = self.draw()

    def draw(self) -> np.ndarray:
        return self.rng.integers(0, self.num_nodes, (2, self.setting["chunks"], self.setting["count"]))

    def numbers(self, batch: int) -> np.ndarray:
        size = self.setting["batch_size"]
        start = batch * size % (len(self.order) - size)
        return self.order[start : start + size]

    def plan(self, batch: int) -> None:
        edges = self.edges[self.numbers(batch)]
        ids = np.concatenate([edges[:, 0], edges[:, 2], self.draw().ravel()]).astype(np.int64)
        np.unique(ids, return_inverse=True)
        np.unique(edges[:, 1], return_inverse=True)

    def limit(self, batch: int) -> None:
        edges = self.edges.take(self.numbers(batch), axis=0)
        np.concatenate([edges[:, 0], edges[:, 2], self.drawn.ravel()])


def medians(contestants: dict[str, Callable[[int], object]], repeats: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(-2, repeats):
        for name, call in contestants.items():
            start = time.perf_counter()
            call(max(repeat, 0))
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def report(title: str, times: dict[str, float], plain: str) -> None:
    print(title)
    for name, seconds in times.items():
        print(
            f"  {name:20s} {seconds * 1e3:8.3f} ms   {times[plain] / seconds:6.1f} x as fast as {plain}"
            f"   {seconds / times['limit']:6.1f} x the limit's time"
        )


def measure(edges: np.ndarray, num_nodes: int, setting: dict[str, int], repeats: int) -> None:
    overrides = [
        f"training.batch_size={setting['batch_size']}",
        f"training.negatives.count={setting['count']}",
        f"training.negatives.chunks={setting['chunks']}",
    ]
    plans = {
        name: EdgePlanner(edges, num_nodes, NUM_RELATIONS, Config.build({"data": {"path": "generated"}}, more))
        for name, more in (
            ("ours", overrides),
            ("ours, by degree", [*overrides, "training.negatives.degree_fraction=0.5"]),
        )
    }
    plain = NumpyPlanner(edges, num_nodes, setting)
    plan = plans["ours"].plan(0)
    parts = [plan.data.heads, plan.data.tails, plan.data.negatives.ravel()]
    ids = plan.rows[0][np.concatenate(parts)]
    ways = {"ours": relabel, "np.sort": by_sort, "hash": by_hash, "np.unique": by_unique}
    # Contestants work in place: all of them pay for one copy, and the limit is nothing else.
    times = medians(
        {
            **{name: lambda _, way=way: way(ids.copy(), num_nodes) for name, way in ways.items()},
            "limit": lambda _: ids.copy(),
        },
        repeats,
    )
    print(f"\n{setting['batch_size']:,} edges, {setting['chunks']} x {setting['count']} negatives per side")
    report(f" relabel {len(ids):,} ids, {len(plan.rows[0]):,} of them different", times, "np.unique")
    calls = {name: planner.plan for name, planner in plans.items()}
    times = medians({**calls, "NumPy": plain.plan, "limit": plain.limit}, repeats)
    report(" plan", times, "NumPy")
    print(f"  ours: {setting['batch_size'] / times['ours']:,.0f} edges/s on one core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=300)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    bounds = (arguments.nodes, NUM_RELATIONS, arguments.nodes)
    edges = np.stack([rng.integers(0, bound, arguments.edges, dtype=np.int32) for bound in bounds], axis=1)
    print(f"{machine()}, NumPy {np.__version__}")
    print(f"{arguments.nodes:,} nodes, {arguments.edges:,} edges, median of {arguments.repeats}")
    for setting in SETTINGS:
        measure(edges, arguments.nodes, setting, arguments.repeats)


if __name__ == "__main__":
    main()
