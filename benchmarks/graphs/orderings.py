"""Partition orderings against plain shuffling: what they cost in quality and what they save in pages read.

    nice -n 5 python -m benchmarks.graphs.orderings --data FOLDER-WITH-fb15k-237  # default: MARIUS_OAC_DATA

Quality: ComplEx on FB15k-237, the same epochs in every ordering; filtered MRR among all entities and among 500 drawn
ones, which is how partitioned training is often judged. Pages: the plans of two epochs are replayed through a cache
that holds a quarter of the table's pages of 10 rows, with LRU and with Belady's choice (the page whose next use is
farthest); the second epoch counts. Beside them stand the bytes of the published formula, `orderings.epoch_io`.
"""

from __future__ import annotations

import argparse
import heapq
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numba import njit

from benchmarks.generate.graph import GeneratedGraph
from benchmarks.graphs.runs import benchmark_graph, complex_config
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.buckets import BucketPlanner, BucketSchedule
from marius_oac.data.batches.edges import EdgePlanner, GraphPlanner
from marius_oac.data.batches.orderings import epoch_io
from marius_oac.data.graphs.buckets import count_buckets, open_buckets
from marius_oac.data.graphs.graph import Graph
from marius_oac.tasks.graph import entity_layout
from marius_oac.tasks.link_prediction.trained import TrainedModel
from marius_oac.training.local import train

PAGE_ROWS, BUDGET, DRAWN = 10, 0.25, 500
SPARE = 16  # pages in which two partitions meet: a buffer touches one more per partition than its share
ORDERINGS = {
    "shuffle": "{kind: shuffle}",
    "beta 8/2": "{kind: beta, partitions: 8, buffer: 2}",
    "beta 16/4": "{kind: beta, partitions: 16, buffer: 4}",
    "comet 16/4": "{kind: comet, partitions: 16, buffer: 4}",
    "beta 32/8": "{kind: beta, partitions: 32, buffer: 8}",
    "comet 32/8": "{kind: comet, partitions: 32, buffer: 8}",
}
"""By partitions / buffer: all hold a quarter of the table."""


def report_quality(graph: Graph, args: argparse.Namespace, folder: Path) -> None:
    print(f"\n| ordering | batches | filtered MRR | of shuffle | MRR among {DRAWN} drawn | of shuffle | s |")
    print("|---|---|---|---|---|---|---|")
    first = None
    for name in args.orderings:
        fixed = ("threads=1", "evaluation.every=0", "metrics.every_batches=1000")
        config = complex_config(graph, args.epochs).replace(*fixed, f"training.ordering={ORDERINGS[name]}")
        run = train(config, folder / name.replace("/", "-"))
        drawn = TrainedModel.open(run.path).evaluate("test", [f"evaluation.candidates={DRAWN}"]).values["filtered.mrr"]
        found = (run.summary["test.filtered.mrr"], drawn)
        first = first or found
        print(
            f"| {name} | {run.summary['training.batches']:,} | {found[0]:.4f} | {found[0] / first[0]:.3f} "
            f"| {found[1]:.4f} | {found[1] / first[1]:.3f} | {run.summary['training.seconds']:.0f} |",
            flush=True,
        )


@contextmanager
def planner_of(edges: np.ndarray, num_nodes: int, num_relations: int, config: Config) -> Iterator[GraphPlanner]:
    """The planner of an ordering, its sorted edges in a temporary folder."""
    ordering = config.training.ordering
    if ordering.kind == "shuffle":
        yield EdgePlanner(edges, num_nodes, num_relations, config)
        return
    counts = count_buckets(edges, num_nodes, ordering.partitions)
    with tempfile.TemporaryDirectory() as folder:
        in_order = open_buckets(Path(folder) / "buckets", edges, counts, num_nodes, num_relations, "a benchmark")
        yield BucketPlanner(in_order, num_nodes, num_relations, config, BucketSchedule(counts, num_nodes, config))


def pages_of(planner: GraphPlanner) -> tuple[np.ndarray, np.ndarray, int]:
    """Pages of the batches of two epochs, int32; where each batch's begin; the first batch of the second epoch."""
    first, last = planner.epoch_ends(2)
    found = [np.unique(planner.plan(number).rows[0] // PAGE_ROWS).astype(np.int32) for number in range(last)]
    return np.concatenate(found), np.concatenate(([0], np.cumsum([len(pages) for pages in found]))), first


@njit(cache=True)
def lru_misses(pages, starts, count_from, frames, num_pages):
    """Misses from batch `count_from` on; a list of the pages that are held, the first used longest ago."""
    before, after = np.full(num_pages + 1, -1, np.int64), np.full(num_pages + 1, -1, np.int64)
    before[num_pages] = after[num_pages] = num_pages
    held = misses = 0
    for i in range(pages.size):
        page = pages[i]
        if after[page] >= 0:
            after[before[page]], before[after[page]] = after[page], before[page]
        else:
            misses += i >= starts[count_from]
            held += 1
            if held > frames:
                oldest = after[num_pages]
                after[num_pages] = after[oldest]
                before[after[oldest]] = num_pages
                after[oldest] = -1
                held -= 1
        last = before[num_pages]
        after[last], before[page], after[page], before[num_pages] = page, last, num_pages, page
    return misses


@njit(cache=True)
def belady_misses(pages, starts, count_from, frames, num_pages):
    """The same where the page goes whose next use is farthest away."""
    never = pages.size
    seen, next_use = np.full(num_pages, never, np.int64), np.empty(pages.size, np.int64)
    for i in range(pages.size - 1, -1, -1):
        next_use[i] = seen[pages[i]]
        seen[pages[i]] = i
    until = np.full(num_pages, -1, np.int64)  # of the pages that are held: their next use
    heap = [(np.int64(0), np.int64(0))]
    heap.pop()
    held = misses = 0
    for i in range(pages.size):
        page = pages[i]
        if until[page] < 0:
            misses += i >= starts[count_from]
            if held == frames:
                while True:  # entries of which the page was used since are stale
                    farthest, victim = heapq.heappop(heap)
                    if until[victim] == -farthest:
                        break
                until[victim] = -1
            else:
                held += 1
        until[page] = next_use[i]
        heapq.heappush(heap, (-next_use[i], np.int64(page)))
    return misses


def report_pages(title: str, edges: np.ndarray, num_nodes: int, num_relations: int, config: Config, names) -> None:
    num_pages = -(-num_nodes // PAGE_ROWS)
    frames, row_bytes = int(BUDGET * num_pages) + SPARE, entity_layout(config).row_bytes
    print(f"\n{title}: {num_pages:,} pages of {PAGE_ROWS * row_bytes:,} bytes, {frames:,} of them held")
    print("\n| ordering | pages a batch | swaps | MB by formula | MB, Belady | of shuffle | MB, LRU | of shuffle |")
    print("|---|---|---|---|---|---|---|---|")
    first = None
    for name in names:
        config = config.replace(f"training.ordering={ORDERINGS[name]}", "training.epochs=2")
        with planner_of(edges, num_nodes, num_relations, config) as planner:
            pages, starts, begin = pages_of(planner)
        args = (pages, starts, begin, frames, num_pages)
        misses = np.array([belady_misses(*args), lru_misses(*args)])
        first = misses if first is None else first
        size, most = np.diff(starts).mean(), np.diff(starts).max()
        ordering = config.training.ordering
        io = None if ordering.kind == "shuffle" else epoch_io(ordering, num_nodes, row_bytes)
        told = ("", "") if io is None else (io.swaps, f"{io.bytes_read / 1e6:,.0f}")
        belady, lru = misses * PAGE_ROWS * row_bytes / 1e6
        print(
            f"| {name} | {size:,.0f}{' (more than are held)' if most > frames else ''} | {told[0]} | {told[1]} "
            f"| {belady:,.0f} | {misses[0] / first[0]:.3f} | {lru:,.0f} | {misses[1] / first[1]:.3f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MARIUS_OAC_DATA"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=500_000, help="of the generated graph, whose pages are counted")
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--orderings", nargs="+", default=list(ORDERINGS), choices=list(ORDERINGS))
    args = parser.parse_args()
    print(machine(), flush=True)
    began = time.perf_counter()
    spec = GeneratedGraph(num_nodes=args.nodes, num_edges=args.edges, num_relations=20)
    large = Config.build(
        {
            "data": {"path": "generated"},
            "training": {"batch_size": 5_000, "epochs": 2, "negatives": {"count": 100, "chunks": 10}},
        }
    )
    title = f"Generated, {args.nodes:,} nodes, {args.edges:,} edges, batches of 5,000, 10 x 100 negatives per side"
    report_pages(title, spec.edges(), args.nodes, 20, large, args.orderings)
    with benchmark_graph(args.data) as graph, tempfile.TemporaryDirectory() as folder:
        config = complex_config(graph, args.epochs)
        edges = graph.edges("train")
        title = "The graph below, batches of 1,000, 500 negatives per side"
        report_pages(title, edges, graph.num_nodes, graph.num_relations, config, args.orderings)
        print(f"\nQuality after {args.epochs} epochs:")
        report_quality(graph, args, Path(folder))
    print(f"\n{(time.perf_counter() - began) / 60:.1f} min")


if __name__ == "__main__":
    main()
