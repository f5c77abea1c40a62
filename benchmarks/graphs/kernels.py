"""Gather and scatter of table rows on one core: our `read` and `commit` against torch, NumPy and a plain memory copy.

    python -m benchmarks.graphs.kernels              # 2 million rows, dimension 100
    python -m benchmarks.graphs.kernels --state 100  # rows with an optimizer state as wide as the value

Each figure is the median over `--repeats` passes of all batches, in GB/s of row bytes moved (value and state; neither
ids nor timestamp words). The contestants take turns, pass by pass, and the ratios are medians of the ratios within a
turn, so a busy machine slows all alike. "Contended": meanwhile another thread commits the same batches to the store in
reverse order without pause. For `read` and `commit` these are the rows they move themselves; the others, who have
tables of their own, only share the memory bus with it. The memory copy moves the same bytes without ids. Tensor and
array are allocated as their libraries do.
"""

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.machine import machine
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore

Pass = Callable[[int], object]


@dataclass
class Contestant:
    name: str
    move: Pass  # moves batch number i
    rates: list[float] = field(default_factory=list)


@contextmanager
def disturbed(disturb: Pass, batches: int) -> Iterator[None]:
    """Keeps another thread writing while the block runs."""
    started, stop = threading.Event(), threading.Event()

    def run() -> None:
        for i in itertools.cycle(reversed(range(batches))):
            disturb(i)
            started.set()
            if stop.is_set():
                return

    thread = threading.Thread(target=run, name="disturb")
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure(contestants: list[Contestant], batches: int, size: int, repeats: int) -> None:
    """Adds `repeats` rates in GB/s to every contestant, after a pass that does not count."""
    for turn in range(repeats + 1):
        for contestant in contestants:
            start = time.perf_counter()
            for i in range(batches):
                contestant.move(i)
            if turn:
                contestant.rates.append(batches * size / (time.perf_counter() - start) / 1e9)


def report(title: str, contestants: list[Contestant]) -> None:
    print(f"\n{title}")
    print(f"  {'':<22}{'GB/s':>8}{'lowest':>8}{'highest':>9}{'x torch':>9}{'x copy':>8}")
    (plain,) = (contestant.rates for contestant in contestants if contestant.name.startswith("torch"))
    (copy,) = (contestant.rates for contestant in contestants if contestant.name == "memory copy")
    for contestant in contestants:
        rates = contestant.rates
        to_plain, to_copy = (
            statistics.median(ours / theirs for ours, theirs in zip(rates, other, strict=True))
            for other in (plain, copy)
        )
        print(
            f"  {contestant.name:<22}{statistics.median(rates):>8.2f}{min(rates):>8.2f}{max(rates):>9.2f}"
            f"{to_plain:>9.2f}{to_copy:>8.2f}"
        )


class Tables:
    """The same rows three times: in a store, in a tensor, in an array."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.clock = itertools.count()
        self.width = options.dimension + options.state
        layout = RowLayout(options.dimension, options.state)
        self.store = MemoryStore("table", options.rows, layout, RowInitial("uniform", 0.1, 0, "table"))
        self.tensor = torch.zeros(options.rows, self.width)
        self.array = np.zeros((options.rows, self.width), np.float32)
        for block in self.store.blocks():
            self.array[block.first_row : block.first_row + len(block.rows)] = block.rows
        self.tensor.copy_(torch.from_numpy(self.array))

    def contestants(self, rows: list[np.ndarray]) -> tuple[list[Contestant], list[Contestant], Pass]:
        """Gathers and scatters of the batches in `rows`, which are of one size, and what disturbs them."""
        count, store, tensor, array = rows[0].size, self.store, self.tensor, self.array
        ids = [torch.from_numpy(batch) for batch in rows]
        into, timestamps = np.zeros((count, self.width), np.float32), np.zeros(count, np.int64)
        into_tensor = torch.from_numpy(into)
        values = np.random.default_rng(1).random((count, self.width), np.float32)
        values_tensor = torch.from_numpy(values)
        # A copy has no ids: the batches lie one behind the other in the array.
        places = [slice(first, first + count) for first in range(0, len(array) - count + 1, count)][: len(rows)]
        clock = self.clock

        def commit(i: int) -> None:
            store.commit(rows[i], values, next(clock))

        def put(i: int) -> None:
            array[rows[i]] = values

        def copy_in(i: int) -> None:
            array[places[i % len(places)]] = values

        def copy_out(i: int) -> None:
            into[:] = array[places[i % len(places)]]

        gathers = [
            Contestant("read", lambda i: store.read(rows[i], into, timestamps)),
            Contestant("torch.index_select", lambda i: torch.index_select(tensor, 0, ids[i], out=into_tensor)),
            Contestant("numpy.take", lambda i: np.take(array, rows[i], axis=0, out=into, mode="clip")),
            Contestant("memory copy", copy_out),
        ]
        scatters = [
            Contestant("commit", commit),
            Contestant("torch.index_copy_", lambda i: tensor.index_copy_(0, ids[i], values_tensor)),
            Contestant("numpy a[rows] = b", put),
            Contestant("memory copy", copy_in),
        ]
        return gathers, scatters, commit


def main() -> None:
    parser = argparse.ArgumentParser(description="Row gather and scatter on one core, in GB/s.")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the table")
    parser.add_argument("--dimension", type=int, default=100, help="float32 elements of a value")
    parser.add_argument("--state", type=int, default=0, help="float32 elements of the optimizer state")
    parser.add_argument("--batch", type=int, nargs="+", default=[3_000, 100_000], help="rows of a batch")
    parser.add_argument("--repeats", type=int, default=15, help="passes; their median is reported")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = Tables(options)
    size = 4 * (options.dimension + options.state)
    print(f"{machine()}\n{options.rows:,} rows of {options.dimension} + {options.state} float32")
    generator = np.random.default_rng(0)
    for count in options.batch:
        # Enough batches that none of them is still in the cache when its turn comes again.
        batches = max(6, 200_000 // count)
        rows = [np.sort(generator.choice(options.rows, count, replace=False)) for _ in range(batches)]
        for contended in (False, True):
            gathers, scatters, disturb = tables.contestants(rows)
            for kind, contestants in (("gather", gathers), ("scatter", scatters)):
                with disturbed(disturb, batches) if contended else nullcontext():
                    measure(contestants, batches, count * size, options.repeats)
                how = "contended" if contended else "quiet"
                report(f"{kind}, {count:,} sorted random rows of {size} bytes, {how}", contestants)


if __name__ == "__main__":
    main()
