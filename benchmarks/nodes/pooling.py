"""Bytes that a bag's rows move between trainers and nodes, pooled by the trainer and by the nodes.

    python -m benchmarks.nodes.pooling  # some minutes on one core

One multi-valued feature of bags of one length, keys drawn by a bounded Zipf law, every node also a trainer, lockstep,
`--in-flight` batches ahead. The messages are the real ones, handled by real shards in this process; what is counted is
all their frames, headers included: what is asked for and pushed, the values that come back, and those that are sent
again since a batch before has changed them. Counts, so the load plays no part, unlike in the milliseconds beside them:
planning a batch on one trainer, handling all messages about one on one shard (pull, push, optimizer); processor time,
median batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from benchmarks.machine import machine
from marius_oac.config.sections import OptimizerConfig
from marius_oac.data.logs.tables import FeatureTable, TableKeys
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.shards.pooling import pool_table
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import KeyedTable
from marius_oac.nodes.transport.messages import Kind, Message, Pull, Push, parse
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.table import KeyTable
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.placement import Placement, Route, route_keys, unique_keys

SKEWS, LENGTHS = (0.0, 1.05), (1, 4, 16, 64)
OPTIMIZER = RowOptimizer(OptimizerConfig())


@dataclass(frozen=True)
class Case:
    """What is measured; `batch` examples of each trainer, `width` floats of a value."""

    keys: int
    skew: float
    length: int
    nodes: int
    width: int
    batch: int
    in_flight: int
    batches: int

    def drawn(self) -> list[list[TableKeys]]:
        """The keys of each batch and trainer."""
        rng, power = np.random.default_rng(0), 1 - self.skew
        offsets = {"bag": np.arange(self.batch + 1) * self.length}
        size = self.batch * self.length

        def one() -> TableKeys:
            # The inverse of the law's distribution, taken as continuous.
            ranks = (1 + rng.random(size) * ((self.keys + 1.0) ** power - 1)) ** (1 / power)
            keys = np.minimum(ranks.astype(np.int64), self.keys)
            return TableKeys(np.zeros(size, np.uint16), keys, np.zeros(size, np.uint32), offsets, self.batch)

        return [[one() for _ in range(self.nodes)] for _ in range(self.batches)]


@dataclass
class Moved:
    """Bytes of all messages by kind, and seconds of what was done for each."""

    size: Counter = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def count(self, message: Message, frames: list) -> None:
        self.size[message.kind] += sum(memoryview(frame).nbytes for frame in frames)


def planned(case: Case, keys: TableKeys, placement: Placement, pooled: bool) -> Route:
    """As a trainer plans the batch's rows."""
    ids, firsts = unique_keys(*keys.asked)
    asked = [part[firsts] for part in keys.asked]
    if not pooled:
        return route_keys(placement, *asked)
    table = FeatureTable("rows", case.width, (), ("bag",), (), {"bag": 0}, case.length)
    return pool_table(table, ["bag"], keys, ids, asked, placement)[0]


def shards(case: Case, pooled: bool) -> list[Shard]:
    layout = RowLayout(case.width, OPTIMIZER.state_width(case.width))
    capacity = min(case.keys, case.batches * case.batch * case.length * case.nodes) + 1
    stores = [
        MemoryStore("rows", 0, layout, RowInitial("normal", 0.01, 0, "rows"), capacity) for _ in range(case.nodes)
    ]
    return [Shard([KeyedTable(KeyTable(store), OPTIMIZER, pools=pooled)], case.nodes) for store in stores]


def moved(case: Case, batches: list[list[TableKeys]], pooled: bool) -> Moved:
    """What the batches move once `in_flight` of them are on their way."""
    every, placement, routes, found = shards(case, pooled), Placement.by_number(case.nodes), {}, Moved()
    ones = np.ones((case.batch * case.length, case.width), np.float32)
    first = 2 * case.in_flight  # until then nobody is behind

    def send(rank: int, node: int, message: Message) -> float:
        frames, start = message.frames(), time.thread_time()
        answers = every[node].handle(rank, parse(frames))
        seconds = time.thread_time() - start
        for each, sent in ((message, frames), *((answer, answer.frames()) for _, answer in answers)):
            if each.batch_index >= first:
                found.count(each, sent)
        return seconds

    for batch_index in range(case.batches + case.in_flight - 1):
        spent = dict.fromkeys(range(case.nodes), 0.0)
        for rank in range(case.nodes if batch_index < case.batches else 0):
            start = time.thread_time()
            route = routes[batch_index, rank] = planned(case, batches[batch_index][rank], placement, pooled)
            found.seconds["plan"].append(time.thread_time() - start)
            for node in range(case.nodes):
                spent[node] += send(rank, node, Pull(batch_index, route.asked_of(node)))
        done = batch_index - case.in_flight + 1
        for rank in range(case.nodes if done >= 0 else 0):
            route = routes.pop((done, rank))
            for node in range(case.nodes):
                gradients = ones[: route.places(node).size]
                spent[node] += send(rank, node, Push(done, [gradients], 1 / case.nodes))
        if first <= batch_index < case.batches:
            found.seconds["shard"] += spent.values()
    return found


def report(case: Case) -> None:
    batches = case.drawn()
    counted = case.nodes * (case.batches - 2 * case.in_flight)
    different = np.mean([unique_keys(*keys.asked)[1].size for each in batches[:4] for keys in each])
    cells, totals = [], []
    for pooled in (False, True):
        found = moved(case, batches, pooled)
        parts = [found.size[kind] / counted / 1e6 for kind in (Kind.PULL, Kind.ROWS, Kind.PUSH, Kind.PATCH)]
        totals.append(sum(parts) + found.size[Kind.APPLIED] / counted / 1e6)
        milliseconds = [statistics.median(found.seconds[name]) * 1e3 for name in ("plan", "shard")]
        cells.append(f"{totals[-1]:.2f} ({', '.join(f'{part:.2f}' for part in parts)}) "
                     f"| {milliseconds[0]:.1f}, {milliseconds[1]:.0f}")  # fmt: skip
    share = different / (case.batch * case.length)
    print(
        f"| {case.width} | {case.nodes} | {case.skew:g} | {case.length} | {share:.2f} | {cells[0]} | {cells[1]} "
        f"| **{totals[1] / totals[0]:.2f}** |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--batch-size", type=int, default=2048, help="examples of each trainer")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--batches", type=int, default=14, help="twice as many as are in flight don't count")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    arguments = parser.parse_args()
    print(machine())
    print("\nMB of a trainer's batch (asked for, sent back, pushed, sent again); ms of its plan, and on a shard\n")
    print("| floats | nodes | skew | bag | different keys | pooled by the trainer | ms | by the nodes | ms | bytes |")
    print("|" + "---|" * 10)
    for width in arguments.widths:
        for nodes in arguments.nodes:
            for skew in SKEWS:
                for length in LENGTHS:
                    report(
                        Case(arguments.keys, skew, length, nodes, width, arguments.batch_size, arguments.in_flight,
                             arguments.batches)
                    )  # fmt: skip


if __name__ == "__main__":
    main()
