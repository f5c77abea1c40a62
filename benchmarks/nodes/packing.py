"""The heaviest node of a sharded click log: virtual shards packed on measured look-ups, against the hash alone.

    python -m benchmarks.nodes.packing  # 33 million keys, batches of 4,096; about a minute on one core
    python -m benchmarks.nodes.packing --batch-size 512

The log is the generator's: 26 columns, Zipf 1.05, each column a vocabulary; the ten largest have rows of 64 floats, the
others of 16, so there are two tables, whose shards are packed together. The first `--measure` batches are the pass that
measures, the next `--batches` are what counts. A load is the heaviest node's of the mean. Costs:

- rows: unique keys of a batch; that is what is pulled and pushed.
- bytes: the same by the width of the rows.
- look-ups: with repetitions, what a shard has to do that pools.

"hash" is the shard by its number modulo the nodes; what other hashes would have given is drawn by dealing the finest
shards out at random, median and 95 % of the draws. "columns" packs whole columns, as ShadowSync packs tables. Times are
medians, of batches and of repeated packings.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.generate.log import LogSpec, day_batches
from benchmarks.machine import machine
from marius_oac.nodes.shards.packing import loads, pack
from marius_oac.storage.placement import Placement, route_keys, shard_of_keys, unique_keys

FINEST = 4096
SHARDS = (16, 32, 64, 128, 256, 512, 1024, 4096)
NODES = (4, 8, 16)
WIDE, WIDTHS = 10, (64, 16)
DRAWS = 400
COSTS = ("rows", "bytes", "look-ups")


@dataclass(frozen=True)
class Counts:
    """What batches ask for.

    Attributes:
        shards: float64 [batches, costs, tables, FINEST]. columns: float64 [batches, costs, columns].
    """

    shards: np.ndarray
    columns: np.ndarray

    def at(self, num_shards: int) -> np.ndarray:
        """[batches, costs, tables * num_shards]; coarser shards are runs of finer ones."""
        batches, costs, tables, _ = self.shards.shape
        return self.shards.reshape(batches, costs, tables, num_shards, -1).sum(-1).reshape(batches, costs, -1)


def counted(spec: LogSpec, batch_size: int, num_batches: int) -> tuple[Counts, dict[str, list[float]]]:
    """Counts of the first batches of day 0, and seconds of what was done for each."""
    columns = spec.categorical
    counts = Counts(np.zeros((num_batches, 3, 2, FINEST)), np.zeros((num_batches, 3, columns)))
    seconds: dict[str, list[float]] = {"unique_keys": [], "np.unique, of keys alone": [], "route_keys, 8 nodes": []}
    placement, checks = Placement.by_number(8), np.zeros(columns * batch_size, np.uint32)
    vocabularies = np.repeat(np.arange(columns, dtype=np.uint16), batch_size)
    width = np.where(np.arange(columns) < WIDE, *WIDTHS).astype(np.float64)

    def timed(name, call, *arguments, **options):
        start = time.perf_counter()
        result = call(*arguments, **options)
        seconds[name].append(time.perf_counter() - start)
        return result

    for number, block in enumerate(day_batches(0, num_batches * batch_size, spec, batch_size)):
        keys = np.concatenate(list(block.examples.keys.values()))
        _, firsts = timed("unique_keys", unique_keys, vocabularies, keys, checks)
        timed("np.unique, of keys alone", np.unique, keys, return_index=True, return_inverse=True)
        own = vocabularies[firsts], keys[firsts], checks[firsts]
        timed("route_keys, 8 nodes", route_keys, placement, *own)
        for cost, (asked, which) in enumerate(((own[0], own[1]), (own[0], own[1]), (vocabularies, keys))):
            shards = shard_of_keys(asked, which, FINEST)
            weights = 4 * width[asked] if cost == 1 else np.ones(asked.size)
            table = (asked >= WIDE).astype(np.int64)
            flat = np.bincount(table * FINEST + shards, weights=weights, minlength=2 * FINEST)
            counts.shards[number, cost] = flat.reshape(2, FINEST)
            counts.columns[number, cost] = np.bincount(asked, weights=weights, minlength=columns)
    return counts, seconds


def heaviest(costs: np.ndarray, nodes: np.ndarray, num_nodes: int) -> tuple[float, float]:
    """The heaviest node's cost of the mean node's, over all batches [batches, shards], and the median batch's."""
    every = np.stack([loads(batch, nodes, num_nodes) for batch in costs])
    total = every.sum(0)
    return total.max() / total.mean(), float(np.median(every.max(1) / every.mean(1)))


def packed(costs: np.ndarray, num_nodes: int) -> np.ndarray:
    """Shards without budgets that bind; what is looked up stands for what is there."""
    sizes = np.ones(costs.size, np.int64)
    return pack(costs, sizes, [costs.size] * num_nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=33_000_000)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--measure", type=int, default=100, help="batches of the pass that measures")
    parser.add_argument("--batches", type=int, default=200, help="batches that count")
    arguments = parser.parse_args()
    print(f"one thread; {machine()}")
    rng = np.random.default_rng(0)
    spec = LogSpec(keys=arguments.keys, skew=1.05)
    counts, seconds = counted(spec, arguments.batch_size, arguments.measure + arguments.batches)
    first, rest = slice(0, arguments.measure), slice(arguments.measure, None)
    unique = counts.shards[rest, 0].sum((1, 2)).mean()
    print(f"{arguments.keys:,} keys, batches of {arguments.batch_size:,}, {unique:,.0f} unique rows in each")
    print("\nheaviest node of the mean: over all batches (in the median batch)\n")
    print("| nodes | cost | columns | hash | other hashes | " + " | ".join(str(v) for v in SHARDS) + " |")
    print("|" + "---|" * (5 + len(SHARDS)))
    for num_nodes in NODES:
        for cost, name in enumerate(COSTS):
            row = []
            total = counts.shards[rest, cost].sum((0, 1))
            others = [loads(rng.permutation(total), np.arange(FINEST) % num_nodes, num_nodes) for _ in range(DRAWS)]
            median, worst = np.quantile([load.max() / load.mean() for load in others], [0.5, 0.95])
            by_column = packed(counts.columns[first, cost].sum(0), num_nodes)
            row.append(heaviest(counts.columns[rest, cost], by_column, num_nodes))
            by_number = Placement.by_number(num_nodes).nodes
            row.append(heaviest(counts.at(by_number.size)[rest, cost], np.tile(by_number, 2), num_nodes))
            for num_shards in SHARDS:
                found = counts.at(num_shards)[:, cost]
                row.append(heaviest(found[rest], packed(found[first].sum(0), num_nodes), num_nodes))
            cells = [f"{all_:.3f} ({one:.3f})" for all_, one in row]
            cells.insert(2, f"{median:.3f} to {worst:.3f}")
            print(f"| {num_nodes} | {name} | " + " | ".join(cells) + " |")
    print("\nnodes that should take 1, 1, 2 and 4 parts, of rows, 256 shards; heaviest by weight of the mean")
    weights, found = np.array([1.0, 1.0, 2.0, 4.0]), counts.at(256)[:, 0]
    nodes = pack(found[first].sum(0), np.ones(512, np.int64), [512] * 4, weights)
    for name, placed in (("hash", np.arange(512) % 4), ("packed", nodes)):
        load = loads(found[rest].sum(0), placed, 4) / weights
        print(f"  {name}: {load.max() * weights.sum() / (load * weights).sum():.3f}")
    print("\nlength of the pass that measures, look-ups, 8 nodes, 256 shards")
    for length in (1, 3, 10, 30, arguments.measure):
        found = counts.at(256)[:, 2]
        load, _ = heaviest(found[rest], packed(found[:length].sum(0), 8), 8)
        print(f"  {length} batches: {load:.3f}")
    print(f"\nmilliseconds, {26 * arguments.batch_size:,} keys a batch")
    for name, times in seconds.items():
        print(f"  {name}: {statistics.median(times) * 1e3:.2f}")
    for num_shards in (256, 1024, 4096):
        found, times = counts.at(num_shards)[first, 2].sum(0), []
        for _ in range(3):
            start = time.perf_counter()
            packed(found, 8)
            times.append(time.perf_counter() - start)
        print(f"  pack, 2 tables of {num_shards} shards, 8 nodes: {statistics.median(times) * 1e3:.1f}")


if __name__ == "__main__":
    main()
