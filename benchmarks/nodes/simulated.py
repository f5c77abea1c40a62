"""A shard and its trainers in a simulated network: latencies, slow trainers, a trainer that dies, 8 to 1,000 trainers.

    python -m benchmarks.nodes.simulated [--trainers 8 64 256 1000] [--batches 12] [--rows 64]

The shard is the real state machine; time and network are made up, and the shard answers at once. A message takes
0.1 to 0.3 ms, one of a hundred 20 ms. A trainer pulls `IN_FLIGHT` batches ahead and computes one in 10 ms, one of a
hundred trainers in 40 ms. Where a trainer dies in the middle of the run, the others wait, until it counts as lost
after a second and the run goes on with one less from the last batch that was applied. Printed are the simulated
time of a batch without and with a death, the shard's real processor time of one, and whether other latencies gave
the same rows.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import heapq
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.nodes.thousand import table_of
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.messages import Message

ROWS, IN_FLIGHT, COMPUTE, SLOW, LOST_AFTER = 1 << 16, 8, 0.010, 4, 1.0


class Simulated(NamedTuple):
    """Seconds of a batch in simulated time and of the shard's processor time, batches, and the rows' SHA-256."""

    seconds: float
    spent: float
    batches: int
    digest: str


class _Run:
    """One set of trainers, from a batch on. An event is a message, to the shard or to a trainer; None: the trainer has
    computed its next batch."""

    def __init__(self, table: NumberedTable, trainers: int, first: int, last: int, rows: int, draw: random.Random):
        self.shard = Shard([table], trainers, ahead=IN_FLIGHT + 1)
        self.trainers, self._rows, self._draw, self._order = trainers, rows, draw, 0
        self._values: dict[tuple[int, int], np.ndarray] = {}
        self._arrived: dict[tuple[int, bool], float] = {}
        self.shard.begin(first)
        self.first, self.last, self.now, self.spent = first, last, 0.0, 0.0
        self._events: list[tuple[float, int, int, bool, Message | None]] = []
        self._next = [first] * trainers  # the batch that each computes or waits for
        self._ready: set[tuple[int, int]] = set()
        self._computing: set[int] = set()
        for trainer in range(trainers):
            for batch in range(first, min(last, first + IN_FLIGHT)):
                self._pull(trainer, batch)

    def run(self, dies: tuple[int, int] | None) -> None:
        """Until nothing happens any more; trainer `dies[0]` computes no batch from `dies[1]` on."""
        while self._events:
            self.now, _, trainer, to_shard, message = heapq.heappop(self._events)
            if to_shard and message is not None:
                began = time.process_time()
                out = self.shard.handle(trainer, message)
                self.spent += time.process_time() - began
                for to, answer in out:
                    self._send(to, False, answer)
            elif message is None:
                self._computed(trainer)
            else:
                self._heard(trainer, message)
            lives = dies is None or trainer != dies[0] or self._next[trainer] < dies[1]
            if lives and trainer not in self._computing and (trainer, self._next[trainer]) in self._ready:
                self._computing.add(trainer)
                self._at(COMPUTE * (SLOW if trainer % 100 == 99 else 1), trainer, False, None)

    def _heard(self, trainer: int, message: Message) -> None:
        match message:
            case messages.Rows(number, (values,), final):
                self._values[trainer, number] = np.array(values)
                if final:
                    self._ready.add((trainer, number))
            case messages.Patch(number, (places, values)):
                self._values[trainer, number][np.asarray(places)] = np.asarray(values)
                self._ready.add((trainer, number))

    def _computed(self, trainer: int) -> None:
        batch = self._next[trainer]
        self._computing.discard(trainer)
        self._next[trainer] += 1
        gradients = (self._values.pop((trainer, batch)) + np.float32(0.01 * (1 + trainer % 7))).astype(np.float32)
        self._send(trainer, True, messages.Push(batch, [gradients], 1 / self.trainers))
        if batch + IN_FLIGHT < self.last:
            self._pull(trainer, batch + IN_FLIGHT)

    def _pull(self, trainer: int, batch: int) -> None:
        asked = np.random.default_rng((batch, trainer)).integers(0, ROWS, self._rows)
        self._send(trainer, True, messages.Pull(batch, [asked]))

    def _send(self, trainer: int, to_shard: bool, message: Message) -> None:
        takes = 0.020 if self._draw.random() < 0.01 else self._draw.uniform(1e-4, 3e-4)
        way = trainer, to_shard  # a connection keeps the order of its messages
        self._arrived[way] = max(self._arrived.get(way, 0.0), self.now + takes)
        self._at(self._arrived[way] - self.now, trainer, to_shard, message)

    def _at(self, after: float, trainer: int, to_shard: bool, message: Message | None) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + after, self._order, trainer, to_shard, message))


def simulate(trainers: int, batches: int, rows: int, seed: int, dies: bool = True) -> Simulated:
    """Trains so many batches; with `dies` the last trainer is lost in the middle."""
    table, draw = table_of(ROWS), random.Random(seed)
    first = _Run(table, trainers, 0, batches, rows, draw)
    first.run((trainers - 1, batches // 2) if dies else None)
    now, spent, applied = first.now, first.spent, first.shard.applied + 1
    if dies:
        second = _Run(table, trainers - 1, applied, batches, rows, draw)
        second.run(None)
        now, spent, applied = now + LOST_AFTER + second.now, spent + second.spent, second.shard.applied + 1
    assert applied == batches, "stuck"
    digest = hashlib.sha256(table.store.fingerprint().encode()).hexdigest()
    return Simulated(now / batches, spent / batches, batches, digest)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each number of trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rows", type=int, default=64)
    given = parser.parse_args(arguments)
    gc.freeze()
    simulate(2, 2, given.rows, 0)  # compiles kernels
    print("| trainers | simulated ms of a batch | with a death | the shard's processor ms | the same rows |")
    print("|---|---|---|---|---|")
    for count in given.trainers:
        plain, other = (simulate(count, given.batches, given.rows, seed, dies=False) for seed in (0, 1))
        dying, again = (simulate(count, given.batches, given.rows, seed) for seed in (0, 1))
        same = "yes" if (plain.digest, dying.digest) == (other.digest, again.digest) else "NO"
        times = f"{1000 * plain.seconds:.1f} | {1000 * dying.seconds:.1f} | {1000 * plain.spent:.1f}"
        print(f"| {count:,} | {times} | {same} |", flush=True)


if __name__ == "__main__":
    main()
