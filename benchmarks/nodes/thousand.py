"""What a shard's part of a batch costs as trainers are added: the state machine itself, without a network.

    python -m benchmarks.nodes.thousand [--trainers 8 64 256 1000] [--rows 64] [--in-flight 8] [--batches 5]

Each trainer pulls `--rows` rows of 64 floats of a shard for each batch, `--in-flight` batches ahead, and pushes
gradients. Processor milliseconds of a batch of all trainers are printed, by message, with what the rows alone cost: one
read, one sum and one update of all rows of the batch at once.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from marius_oac.config.sections import OptimizerConfig
from marius_oac.kernels.cpu import shards as kernels
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.shards.shard import Out, Shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.transport import messages
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore

ROWS, DIMENSION = 1 << 20, 64


def _table() -> NumberedTable:
    store = MemoryStore("rows", ROWS, RowLayout(DIMENSION, DIMENSION), RowInitial("normal", 0.1, 3, "rows"), ROWS)
    return NumberedTable(store, RowOptimizer(OptimizerConfig(learning_rate=0.1)))


class _Trainers:
    """All trainers of a shard, in turns."""

    def __init__(self, count: int, rows: int, in_flight: int):
        self.count, self._rows, self._in_flight = count, rows, in_flight
        self.table = _table()
        self._shard = Shard([self.table], count, ahead=in_flight + 1)
        self._random = np.random.default_rng(count)
        self.spent: Counter[str] = Counter()
        for batch in range(in_flight):
            self._pull(batch)

    def asked(self) -> np.ndarray:
        """Rows that a trainer asks for."""
        return self._random.integers(0, ROWS, self._rows)

    def batch(self, number: int) -> None:
        """Trains a batch: its pushes, and the pulls of one that is `in_flight` later."""
        self._pull(number + self._in_flight)
        gradients = [np.full((self._rows, DIMENSION), 0.01, np.float32) for _ in range(self.count)]
        pushes = [messages.Push(number, [each], 1 / self.count) for each in gradients]
        self._tell("push", pushes)

    def _pull(self, batch: int) -> None:
        self._tell("pull", [messages.Pull(batch, [self.asked()]) for _ in range(self.count)])

    def _tell(self, what: str, asked: list[messages.Message]) -> None:
        out: list[Out] = []
        began = time.process_time()
        for peer, message in enumerate(asked):
            out += self._shard.handle(peer, message)
        self.spent[what] += time.process_time() - began
        assert len(out) == self.count


def _floor(trainers: _Trainers, timestamp: int) -> float:
    """Seconds of reading, adding up and updating the rows of a batch at once."""
    asked = [np.unique(trainers.asked()) for _ in range(trainers.count)]
    gradients = [np.full((each.size, DIMENSION), 0.01, np.float32) for each in asked]
    began = time.process_time()
    trainers.table.read(np.unique(np.concatenate(asked)))
    rows, total = kernels.added_up(asked, gradients, [1 / trainers.count] * trainers.count, ROWS)
    trainers.table.apply(rows, total, timestamp, 1.0)
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each number of trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--batches", type=int, default=5)
    given = parser.parse_args(arguments)
    print("| trainers | ms of a batch | its pulls | its pushes, sums, patches | rows alone |\n|---|---|---|---|---|")
    for count in given.trainers:
        trainers = _Trainers(count, given.rows, given.in_flight)
        trainers.batch(0)  # compiles kernels
        trainers.spent.clear()
        for number in range(1, given.batches + 1):
            trainers.batch(number)
        pull, push = (1000 * trainers.spent[what] / given.batches for what in ("pull", "push"))
        floor = 1000 * min(_floor(trainers, number) for number in range(100, 103))
        print(f"| {count:,} | {pull + push:.1f} | {pull:.1f} | {push:.1f} | {floor:.1f} |", flush=True)


if __name__ == "__main__":
    main()
