"""Pages that have to be read again: the disk tier's look-ahead eviction against an offline oracle and against LRU.

    python -m benchmarks.disk.eviction                                 # both traces, some minutes on one core
    python -m benchmarks.disk.eviction --traces clicks --warm-up 3000  # the table of clicks grows as it runs

The tier's own `Directory` is driven by the pages of planned batches. The oracle is Belady's choice over the whole
trace: of the pages that nobody holds the one goes whose next use is farthest. LRU takes the one that was let go first.
All three hold a batch's pages from when it is fetched until `--in-flight` batches later. Only pages that have been used
before count as misses: a page's first rows are computed, not read.

Traces: `clicks`, the log generator's (Zipf 1.05, 26 columns), rows numbered in the order in which the
log first names their keys, 30 rows of 16 + 16 floats in a page of 4 KiB; `graph`, batches of 1,000 shuffled edges with
500 uniform negatives per side, 5 rows of 100 + 100 floats in a page. After a first part that fills the memory, the next
`--batches` count; the oracle also knows as many after them.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit

from benchmarks.generate.graph import GeneratedGraph
from benchmarks.generate.log import LogSpec, day_batches
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.directory import Directory
from marius_oac.storage.disk.layout import BLOCK_BYTES
from marius_oac.storage.disk.tier import _ENTRIES_PER_FRAME as ENTRIES_PER_FRAME
from marius_oac.storage.keys.index import KeyIndex

SKEW = 1.05
LOOK_AHEAD, BUDGETS = (1, 4, 16, 32, 64), (0.5, 0.25, 0.1)
WINDOWS = (1, 2, 3, 4, 6, 8, 12)  # entries of announced batches, in frames


@dataclass(frozen=True)
class Trace:
    """Pages of batches, ascending in each.

    Attributes:
        pages: int32, of all batches one behind the other.
        starts: int64 [batches + 1], where each batch's begin.
        following: int32, for each of `pages` the next batch that uses it, or the number of batches.
        known: pages below this one were in use before the trace begins.
        count: batches [count.start, count.stop) count.
        num_pages: of the table at the end of what counts.
    """

    pages: np.ndarray
    starts: np.ndarray
    following: np.ndarray
    known: int
    count: range
    num_pages: int

    @classmethod
    def of(cls, batches: list[np.ndarray], known: int, count: range) -> Trace:
        pages = np.concatenate(batches)
        starts = np.concatenate(([0], np.cumsum([len(batch) for batch in batches])))
        largest = int(pages[: starts[count.stop]].max()) + 1
        return cls(pages, starts, next_uses(pages, starts), known, count, max(known, largest))

    def batch(self, number: int) -> np.ndarray:
        return self.pages[self.starts[number] : self.starts[number + 1]].astype(np.int64)

    @property
    def batches(self) -> int:
        return len(self.starts) - 1

    @property
    def kernel_arguments(self) -> tuple:
        return self.pages, self.starts, self.following, self.known, self.count.start, self.count.stop

    @property
    def pages_a_batch(self) -> float:
        return (self.starts[self.count.stop] - self.starts[self.count.start]) / len(self.count)


@njit(cache=True)
def next_uses(pages, starts):
    following = np.empty(pages.size, np.int32)
    seen = np.full(pages.max() + 1, starts.size - 1, np.int32)
    for batch in range(starts.size - 2, -1, -1):
        for i in range(starts[batch], starts[batch + 1]):
            following[i] = seen[pages[i]]
            seen[pages[i]] = batch
    return following


@njit(cache=True)
def simulate(pages, starts, following, known, first, last, frames, in_flight, lru):
    """Misses of batches [first, last), with LRU or Belady's choice; -1: the frames are too few for those in flight.

    Pages that may go lie in a heap; an entry is stale if the page has been held since.
    """
    count = pages.max() + 1
    pins, resident, seen = np.zeros(count, np.int32), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    seen[:known] = True
    next_use, entry = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    heap = [(np.int64(0), np.int64(0), np.int64(0))]  # (order, number of the entry, page)
    heap.pop()
    free, entries, misses = frames, 0, 0
    missing = np.empty(np.max(starts[1:] - starts[:-1]), np.int64)
    for batch in range(starts.size - 1):
        if batch >= in_flight:
            for i in range(starts[batch - in_flight], starts[batch - in_flight + 1]):
                page = pages[i]
                pins[page] -= 1
                if pins[page] == 0:
                    order = entries if lru else -next_use[page]
                    heapq.heappush(heap, (np.int64(order), np.int64(entries), np.int64(page)))
                    entry[page] = entries
                    entries += 1
        lacking = 0
        for i in range(starts[batch], starts[batch + 1]):
            page = pages[i]
            next_use[page] = following[i]
            if resident[page]:
                pins[page] += 1
                entry[page] = -1
            else:
                missing[lacking] = page
                lacking += 1
        for i in range(lacking):
            if free > 0:
                free -= 1
            else:
                while True:
                    if len(heap) == 0:
                        return -1
                    _, number, victim = heapq.heappop(heap)
                    if entry[victim] == number:
                        break
                resident[victim], entry[victim] = False, -1
            page = missing[i]
            misses += seen[page] and first <= batch < last
            resident[page], seen[page], pins[page] = True, True, 1
    return misses


def of_directory(trace: Trace, frames: int, look_ahead: int, entries: int, in_flight: int) -> tuple[int, float]:
    """Misses of the tier's directory, and how many batches ahead it saw, on average."""
    slots = np.zeros(int(trace.pages.max()) + 1, np.int64)
    directory = Directory(slots.size, frames, entries, look_ahead, slots)
    seen = np.zeros(slots.size, bool)
    seen[: trace.known] = True
    announced, misses, ahead, flying = 0, 0, 0, deque()
    for number in range(trace.count.stop):
        while announced < trace.batches and announced - number <= look_ahead:
            pages = trace.batch(announced)
            if not directory.can_announce(pages):
                break
            directory.announce(pages, announced)
            announced += 1
        if len(flying) == in_flight:
            directory.release(flying.popleft())
        pages = trace.batch(number)
        missing, _ = directory.hold(pages, number)
        flying.append(pages)
        if number in trace.count:
            misses += int(seen[missing].sum())
            ahead += announced - number - 1
        seen[missing] = True
    return misses, ahead / len(trace.count)


def clicks(keys: int, size: int, warm_up: int, fill: int, batches: int, after: int) -> Trace:
    spec, rows_per_page = LogSpec(keys=keys, skew=SKEW), BLOCK_BYTES // RowLayout(16, 16).row_bytes
    index = KeyIndex("clicks", keys * 2)
    vocabularies = np.repeat(np.arange(spec.categorical, dtype=np.uint16), size)
    found, total, known = [], warm_up + fill + batches + after, 0
    for number, names in enumerate(key_batches(spec, size, total)):
        if number == warm_up:
            known = -(-len(index) // rows_per_page)
        rows = np.empty(names.size, np.int64)
        index.insert(vocabularies, names, rows)
        if number >= warm_up:
            found.append(np.unique(rows // rows_per_page).astype(np.int32))
    return Trace.of(found, known, range(fill, fill + batches))


def key_batches(spec: LogSpec, size: int, count: int) -> Iterator[np.ndarray]:
    """Keys of one batch after another, int64, column by column as a plan has them."""
    for block in day_batches(0, count * size, spec, 16 * size):
        columns = np.stack([block.examples.keys[f"c{c}"] for c in range(spec.categorical)])
        for first in range(0, columns.shape[1], size):
            yield columns[:, first : first + size].reshape(-1)


def graph(nodes: int, fill: int, batches: int, after: int) -> Trace:
    total, size = fill + batches + after, 1000
    spec = GeneratedGraph(num_nodes=nodes, num_edges=total * size, num_relations=20)
    config = Config.build(
        {"data": {"path": "generated"}, "training": {"batch_size": size, "negatives": {"count": 500, "chunks": 1}}}
    )
    planner = EdgePlanner(spec.edges(), nodes, 20, config)
    rows_per_page = BLOCK_BYTES // RowLayout(100, 100).row_bytes
    pages = [np.unique(planner.plan(number).rows[0] // rows_per_page).astype(np.int32) for number in range(total)]
    return Trace.of(pages, -(-nodes // rows_per_page), range(fill, fill + batches))


def report(name: str, trace: Trace, look_ahead: list[int], budgets: list[float], in_flight: int) -> None:
    print(
        f"\n{name}: {trace.num_pages:,} pages, {trace.pages_a_batch:,.0f} of them a batch\n\n"
        "| trace | budget | frames | in batches | who | entries / frames | batches seen ahead | misses a batch "
        "| of the oracle | of LRU |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for budget in budgets:
        frames = int(budget * trace.num_pages)
        row = f"| {name} | {budget:.0%} | {frames:,} | {frames / trace.pages_a_batch:.1f} |"
        oracle, lru = (simulate(*trace.kernel_arguments, frames, in_flight, policy) for policy in (False, True))
        if lru < 0:
            print(f"{row} too few for {in_flight} batches in flight |", flush=True)
            continue

        def tell(who: str, entries: str, ahead: str, misses: int, row=row, oracle=oracle, lru=lru) -> None:
            print(
                f"{row} {who} | {entries} | {ahead} | {misses / len(trace.count):,.0f} | {misses / max(oracle, 1):.3f} "
                f"| {misses / max(lru, 1):.3f} |",
                flush=True,
            )

        tell("oracle", "", "all", oracle)
        tell("LRU", "", "", lru)
        for count in look_ahead:
            misses, ahead = of_directory(trace, frames, count, ENTRIES_PER_FRAME * frames, in_flight)
            tell(f"look-ahead {count}", f"{ENTRIES_PER_FRAME}", f"{ahead:.1f}", misses)
        for factor in WINDOWS:
            misses, ahead = of_directory(trace, frames, trace.batches, int(factor * frames), in_flight)
            tell("as far as entries reach", f"{factor}", f"{ahead:.1f}", misses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="+", choices=["clicks", "graph"], default=["clicks", "graph"])
    parser.add_argument("--keys", type=int, default=33_000_000, help="of the click log's vocabularies")
    parser.add_argument("--batch-size", type=int, default=4096, help="of the click log")
    parser.add_argument("--warm-up", type=int, default=3000, help="batches of the click log before the trace begins")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the graph")
    parser.add_argument("--batches", type=int, default=200, help="that count")
    parser.add_argument("--fill", type=int, default=300, help="batches that fill the memory before")
    parser.add_argument("--look-ahead", nargs="+", type=int, default=LOOK_AHEAD)
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS, help="shares of the table's pages")
    parser.add_argument("--in-flight", type=int, default=4)
    args = parser.parse_args()
    began = time.perf_counter()
    print(machine())
    size = (args.fill, args.batches, args.batches)
    rest = (args.look_ahead, args.budgets, args.in_flight)
    if "clicks" in args.traces:
        report("clicks", clicks(args.keys, args.batch_size, args.warm_up, *size), *rest)
    if "graph" in args.traces:
        report("graph", graph(args.nodes, *size), *rest)
    print(f"\n{(time.perf_counter() - began) / 60:.1f} min")


if __name__ == "__main__":
    main()
