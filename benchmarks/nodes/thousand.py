"""What a shard's part of a batch costs as trainers are added: the state machine itself, without a network.

    python -m benchmarks.nodes.thousand [--trainers 8 64 256 1000] [--rows 64] [--in-flight 8] [--batches 20]
        [--parts]

Each trainer pulls `--rows` rows of 64 floats of a shard for each batch, `--in-flight` batches ahead, and pushes
gradients. Processor milliseconds of a batch of all trainers are printed, by message, with what the rows alone cost: one
read, one sum and one update of all rows of the batch at once. With `--parts` a batch has virtual parts, the least power
of two from the number of trainers on.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.parts.blocks import blocks_of, parts_of
from marius_oac.nodes.shards.bags import Picks
from marius_oac.nodes.shards.gathered import added_up
from marius_oac.nodes.shards.shard import Out, Shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.transport import messages
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore

ROWS, DIMENSION = 1 << 20, 64


def table_of(rows: int) -> NumberedTable:
    """Returns a table of so many rows of 64 floats, updated by Adagrad."""
    store = MemoryStore("rows", rows, RowLayout(DIMENSION, DIMENSION), RowInitial("normal", 0.1, 3, "rows"), rows)
    return NumberedTable(store, RowOptimizer(OptimizerConfig(learning_rate=0.1)))


class _Trainers:
    """All trainers of a shard, in turns."""

    def __init__(self, count: int, rows: int, in_flight: int, parts: int | None):
        self.count, self._rows, self._in_flight = count, rows, in_flight
        self.table = table_of(ROWS)
        self._shard = Shard([self.table], count, ahead=in_flight + 1, parts=parts)
        owned = [range(1)] * count if parts is None else [parts_of(number, count, parts) for number in range(count)]
        self._blocks = [len(blocks_of(each, parts or 1)) for each in owned]
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
        self._tell("push", [messages.Push(number, self._gradients(each), 1 / self.count) for each in self._blocks])

    def _gradients(self, blocks: int) -> list[np.ndarray]:
        values = np.full((blocks * self._rows, DIMENSION), 0.01, np.float32)
        return [values] if blocks == 1 else [np.full((blocks, -(-self._rows // 8)), 255, np.uint8), values]

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
    every = np.unique(np.concatenate(asked))
    began = time.process_time()
    trainers.table.read(every)
    picks = [Picks.of(np.arange(each.size), None) for each in asked]
    rows, total = added_up(asked, picks, gradients, [1 / trainers.count] * trainers.count, ROWS)
    trainers.table.apply(rows, total, timestamp, 1.0)
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each number of trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--parts", action="store_true")
    given = parser.parse_args(arguments)
    gc.freeze()  # as a trainer's process does when all is imported: what stays is not looked through again
    print("| trainers | ms of a batch | its pulls | its pushes, sums, patches | rows alone |\n|---|---|---|---|---|")
    for count in given.trainers:
        parts = 1 << (count - 1).bit_length() if given.parts else None
        trainers = _Trainers(count, given.rows, given.in_flight, parts)
        trainers.batch(0)  # compiles kernels
        trainers.spent.clear()
        for number in range(1, given.batches + 1):
            trainers.batch(number)
        pull, push = (1000 * trainers.spent[what] / given.batches for what in ("pull", "push"))
        floor = 1000 * min(_floor(trainers, number) for number in range(100, 103))
        print(f"| {count:,} | {pull + push:.1f} | {pull:.1f} | {push:.1f} | {floor:.1f} |", flush=True)


if __name__ == "__main__":
    main()
