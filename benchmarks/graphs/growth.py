"""How the cost of a row grows with the table: 10^5 to 8.6 x 10^7 nodes of a graph, 10^6 to 5 x 10^8 keys of a log.

    python -m benchmarks.graphs.growth                          # some minutes, 12 GiB
    python -m benchmarks.graphs.growth --nodes 100000 1000000 --keys 1000000

Nodes: nanoseconds, on one core, for each different row of a batch of 22,000 ids (10,000 edges in 10 chunks of 100
negatives a side, drawn uniformly, the worst case for caches): `plan` draws, looks up and relabels them; `read` and
`commit` move rows of 16 floats with row-wise Adagrad; `directory` announces, holds and releases them as pages of 4 KiB
with a tenth of the pages in memory. The limit of each is what the machine itself takes for as many independent random
accesses to that much memory: `gather`, of torch.index_select on a tensor as large as the table.

Keys: nanoseconds a key, all threads, batches of 409,600: `insert` of new ones while the index grows to its size,
`find` of known ones, drawn uniformly; `gather` is the limit, two random cache lines a key, fetched ahead.

Bytes: of the index of a key; of the directory of a row, of which there are several in a page; of a batch's plan.
Medians over the batches. Draws docs/figures/growth.png.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from benchmarks import plots
from benchmarks.clicks.key_index import BATCH, ZEROS, keys_of, read_ahead, resolve
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.directory import Directory, zeros
from marius_oac.storage.disk.layout import PAGE_TABLE_BYTES
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.index import KeyIndex
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.reserved import reserve

Row = dict[str, float]

NODES = (100_000, 1_000_000, 10_000_000, 86_054_151)
KEYS = (1_000_000, 10_000_000, 100_000_000, 500_000_000)
_EDGES, _LAYOUT, _PAGE = 2_000_000, RowLayout(16, 1), 4096


def nanoseconds(call: Callable[[int], object], batches: int, items: float) -> float:
    """Of an item, the median over `batches` calls; the first two don't count."""
    taken = []
    for number in range(batches + 2):
        began = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:]) / items * 1e9


def of_nodes(count: int, batches: int) -> Row:
    """Costs with a table of `count` rows."""
    overrides = ["training.batch_size=10000", "training.negatives.count=100", "training.negatives.chunks=10"]
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, bound, _EDGES, dtype=np.int32) for bound in (count, 1000, count)], axis=1)
    planner = EdgePlanner(edges, count, 1000, Config.build({"data": {"path": "generated"}}, overrides))
    plans = [planner.plan(number) for number in range(batches + 2)]
    rows = [plan.rows[0] for plan in plans]
    size = statistics.mean(part.size for part in rows)
    each = batches, size
    found = {"plan": nanoseconds(planner.plan, *each)}

    found |= of_store(count, rows, *each) | {"gather": _selected(count, rows, *each)}
    return found | of_directory(count, rows, batches) | {"plan bytes": _plan_bytes(plans[0], size)}


def of_store(count: int, rows: Sequence[np.ndarray], batches: int, size: float) -> Row:
    """Costs of reading and committing batches of `size` rows on average."""
    store = MemoryStore("table", count, _LAYOUT, RowInitial("uniform", 0.1, 0, "table"))
    most = max(map(len, rows))
    into, timestamps = np.zeros((most, 17), np.float32), np.zeros(most, np.int64)

    def read(i: int) -> None:
        store.read(rows[i], into[: len(rows[i])], timestamps[: len(rows[i])])

    def commit(i: int) -> None:
        store.commit(rows[i], into[: len(rows[i])], i)

    return {"read": nanoseconds(read, batches, size), "commit": nanoseconds(commit, batches, size)}


def _selected(count: int, rows: Sequence[np.ndarray], batches: int, size: float) -> float:
    tensor = torch.ones(count, _LAYOUT.row_bytes // 4)  # not zeros, whose pages are all one
    ids, out = [torch.from_numpy(part) for part in rows], torch.zeros(max(map(len, rows)), tensor.shape[1])
    return nanoseconds(lambda i: torch.index_select(tensor, 0, ids[i], out=out[: len(ids[i])]), batches, size)


def _plan_bytes(plan, size: float) -> float:
    """Of a row of a batch: its id, and what the batch's record has of it."""
    arrays = [value for value in vars(plan.data).values() if isinstance(value, np.ndarray)]
    return (plan.rows[0].nbytes + sum(value.nbytes for value in arrays)) / size


def of_directory(count: int, rows: Sequence[np.ndarray], batches: int) -> Row:
    """Costs of the disk tier's directory of a table of `count` rows, a tenth of whose pages are in memory."""
    in_page = _PAGE // _LAYOUT.row_bytes
    pages = -(-count // in_page)
    used = [np.unique(part // in_page) for part in rows]
    frames = max(pages // 10, 2 * max(map(len, used)))
    directory = Directory(pages, frames, 4 * max(map(len, used)), 2, zeros(pages, np.int64))

    def cycle(i: int) -> None:
        directory.announce(used[i], i)
        directory.hold(used[i], i)
        directory.release(used[i])

    spent = nanoseconds(cycle, batches, statistics.mean(map(len, used)))
    return {"directory": spent, "directory bytes": PAGE_TABLE_BYTES / in_page}


def of_keys(count: int, batches: int) -> Row:
    """Costs of an index of `count` keys."""
    with closing(ThreadPool(len(os.sched_getaffinity(0)))) as pool:
        warm, rows = KeyIndex("warm", 1 << 20, pool=pool), np.empty(BATCH, np.int64)
        warm.insert(ZEROS, keys_of(np.arange(BATCH)), rows)  # compiles
        resolve(warm, keys_of(np.arange(BATCH)), pool)
        return _of_index(count, batches, pool) | {"gather": _gathered(count, batches, pool)}


def _of_index(count: int, batches: int, pool: ThreadPool) -> Row:
    rng, rows = np.random.default_rng(0), np.empty(BATCH, np.int64)
    index, inserting = KeyIndex("keys", count, pool=pool), 0.0
    for first in range(0, count, BATCH):
        keys = keys_of(np.arange(first, min(first + BATCH, count)))
        began = time.perf_counter()
        index.insert(ZEROS[: keys.size], keys, rows[: keys.size])
        inserting += time.perf_counter() - began
    known = [keys_of(rng.integers(0, count, BATCH)) for _ in range(batches + 2)]
    found = nanoseconds(lambda i: resolve(index, known[i], pool), batches, BATCH)
    return {"insert": inserting / count * 1e9, "find": found, "index bytes": index.nbytes / count}


def _gathered(count: int, batches: int, pool: ThreadPool) -> float:
    lines = count * 6 // 64 + 1
    slots, records = reserve(64 * lines), reserve(16 * count)
    for memory in (slots, records):
        np.frombuffer(memory, np.int64)[:] = 1
    addresses = [np.frombuffer(memory, np.int64).ctypes.data for memory in (slots, records)]
    rng = np.random.default_rng(0)
    places = [(rng.integers(0, lines, BATCH), rng.integers(0, count, BATCH)) for _ in range(batches + 2)]

    def gather(i: int) -> None:
        def part(first: int, end: int) -> None:
            some = slice(first, end)
            read_ahead(addresses[0], places[i][0][some], addresses[1], places[i][1][some])

        pool.over(BATCH, 1, part)

    return nanoseconds(gather, batches, BATCH)


def table(title: str, rows: dict[int, Row]) -> None:
    """Prints a line for each size, and at the end how often the largest one costs what the smallest does."""
    names = list(next(iter(rows.values())))
    print(f"\n| {title} | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for size, row in rows.items():
        print(f"| {size:,} | " + " | ".join(f"{row[name]:.1f}" for name in names) + " |")
    smallest, largest = rows[min(rows)], rows[max(rows)]
    print("| largest / smallest | " + " | ".join(f"{largest[name] / smallest[name]:.2f}" for name in names) + " |")


def draw(parts: dict[str, dict[int, Row]], path: Path) -> None:
    """Nanoseconds over sizes, a panel for nodes and one for keys."""
    figure, panels = plots.subplots(1, len(parts), figsize=(11, 4))
    for panel, (title, rows) in zip(np.atleast_1d(panels), parts.items(), strict=True):
        for name in next(iter(rows.values())):
            if not name.endswith("bytes"):
                style = "--" if name == "gather" else "-"
                panel.plot(list(rows), [row[name] for row in rows.values()], style, marker="o", label=name)
        panel.set(xscale="log", xlabel=title, ylabel="ns", ylim=(0, None))
        panel.legend()
    plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=NODES)
    parser.add_argument("--keys", type=int, nargs="*", default=KEYS)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/growth.png"))
    arguments = parser.parse_args()
    plots.check(parser)
    torch.set_num_threads(1)
    print(machine())
    parts = {}
    for title, sizes, of in (("nodes", arguments.nodes, of_nodes), ("keys", arguments.keys, of_keys)):
        if sizes:
            parts[title] = {size: of(size, arguments.batches) for size in sizes}
            table(title, parts[title])
    draw(parts, arguments.out)


if __name__ == "__main__":
    main()
