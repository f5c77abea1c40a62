"""What the engine costs in a user's own loop: an empty model, and a DLRM of torch's over our table.

    python -m benchmarks.own_loop.speed                 # one table, 1,024 keys of 64 floats, microseconds a batch
    python -m benchmarks.own_loop.speed --setting dlrm  # or deepfm, sparse: examples/s, as in benchmarks.clicks.step

Of the empty model "rows" reads and commits the rows that a loop needs, and nothing else, in one thread; "floor" calls
what a batch can't do without, one after the other: keys are told apart and their rows found, sorted and read, copied to
a leaf tensor and checked; "loop" asks the engine for batch after batch and does nothing with them, so that nothing is
committed; "step" looks the rows up, has gradients of ones and updates the rows, by SGD; "plain" does what "step" does
with nn.Embedding(sparse=True) of as many rows.

Of the others "dense" is the network alone, "plain" has nn.EmbeddingBag(sparse=True) with torch.optim.Adagrad, and
"loop" the engine's table in its place: the same network, under torch. The engine goes on while others have their turns,
so a round has many more batches than are in flight.
"""

import argparse
import itertools
from functools import partial

import numpy as np
import torch
from torch import nn

import marius_oac.torch as mt
from benchmarks.clicks.step import BATCH, DIMENSION, DRAWN, SETTINGS, Race, Torch, config_scale
from benchmarks.machine import machine
from benchmarks.turns import Contestant, take_turns
from marius_oac.kernels.cpu import leaves
from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.models.compute.soundness import is_sound
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.storage.keys.table import KeyTable
from marius_oac.storage.memory import MemoryStore

KEYS, ROWS, FLOATS = 1024, 1_000_000, 64
ROUND = 400
"""Batches of the empty model in a round."""


def draw() -> list[torch.Tensor]:
    """Batches of different keys."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randperm(ROWS, generator=generator)[:KEYS] for _ in range(64)]


class Rows(Contestant):
    """Reads and commits."""

    def __init__(self) -> None:
        self._store = MemoryStore("rows", ROWS, RowLayout(FLOATS, 0), RowInitial("normal", 1.0, 0, "rows"))
        self._batches = [np.sort(keys.numpy()) for keys in draw()]
        self._values, self._timestamps = np.empty((KEYS, FLOATS), np.float32), np.empty(KEYS, np.int64)
        self._next = 0

    def run(self, batches: int) -> None:
        for _ in range(batches):
            rows = self._batches[self._next % len(self._batches)]
            self._store.read(rows, self._values, self._timestamps)
            self._store.commit(rows, self._values, self._next)
            self._next += 1


class Floor(Contestant):
    """The parts of a batch that look at each of its keys or floats, and the leaf."""

    def __init__(self) -> None:
        self._keys = KeyTable(MemoryStore("rows", 0, RowLayout(FLOATS, 0), RowInitial("normal", 1.0, 0, "rows"), ROWS))
        for keys in np.arange(ROWS).reshape(16, -1):
            self._keys.admit(*self._asked(keys), np.full(keys.size, -1), distinct=True)
        self._batches, self._next = [keys.numpy() for keys in draw()], 0
        self._values, self._timestamps = np.empty((KEYS, FLOATS), np.float32), np.empty(KEYS, np.int64)

    @staticmethod
    def _asked(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.zeros(keys.size, np.uint16), keys, np.zeros(keys.size, np.uint32)

    def run(self, batches: int) -> None:
        for _ in range(batches):
            keys = self._batches[self._next % len(self._batches)]
            distinct = DistinctKeys.of("rows", *self._asked(keys))
            order = self._keys.find(*distinct.asked)
            rows = relabel(order, ROWS)
            self._keys.store.read(rows, self._values, self._timestamps)
            leaf = np.empty((KEYS, FLOATS), np.float32)
            leaves.gather(self._values, order, leaf)
            torch.from_numpy(leaf).requires_grad_().register_hook(lambda gradient: None)
            is_sound(self._values, FLOATS)
            self._next += 1


class Loop(Contestant):
    """The engine's loop over an empty model; `trains`: with gradients and a step."""

    def __init__(self, trains: bool, in_flight: int):
        self._items, self._trains = mt.Embedding(FLOATS), trains
        model = nn.Sequential(self._items)
        self._rows = mt.SGD(model, lr=0.1)
        self._engine = mt.Engine(model, {self._items: 0}, [self._rows], in_flight=in_flight)
        for _ in self._engine.batches([[keys] for keys in torch.arange(ROWS).split(ROWS // 16)]):
            pass
        self._batches = self._engine.batches(itertools.cycle([[keys] for keys in draw()]))

    def run(self, batches: int) -> None:
        for (keys,) in itertools.islice(self._batches, batches):
            if self._trains:
                self._rows.zero_grad()
                self._items(keys).sum().backward()
                self._rows.step()

    def close(self) -> None:
        self._engine.close()


class Plain(Contestant):
    """What `Loop` does, with torch's table."""

    def __init__(self) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._items, self._batches, self._next = nn.Embedding(ROWS, FLOATS, sparse=True), draw(), 0
        self._rows = torch.optim.SGD(self._items.parameters(), lr=0.1)

    def run(self, batches: int) -> None:
        for _ in range(batches):
            self._rows.zero_grad()
            self._items(self._batches[self._next % len(self._batches)]).sum().backward()
            self._rows.step()
            self._next += 1


class OwnLoop(Torch):
    """The network of `Torch` over the engine's table."""

    def __init__(self, race: Race, in_flight: int):
        super().__init__(race, table=True)
        self._table = mt.EmbeddingBag(DIMENSION + self._network.first_order, std=config_scale(race))
        rows = mt.Adagrad(self._table, lr=race.config().training.optimizer.learning_rate)
        self._optimizers[1] = rows
        self._engine = mt.Engine(nn.ModuleList([self._table]), {self._table: 0}, [rows], in_flight=in_flight)
        self._fed = self._engine.batches(itertools.cycle(self._batches))

    def run(self, batches: int) -> None:
        for _ in range(batches):
            self._batches[self._next % DRAWN] = next(self._fed)
            super().run(1)

    def close(self) -> None:
        self._engine.close()


def empty(options: argparse.Namespace) -> None:
    factories = {
        "rows": Rows,
        "floor": Floor,
        "loop": partial(Loop, False, options.in_flight),
        "step": partial(Loop, True, options.in_flight),
        "plain": Plain,
    }
    times = take_turns(factories, options.cores, ROUND, options.rounds)
    table = f"one table, {KEYS:,} keys of {FLOATS} floats"
    print(f"{machine()}\n{table}, {options.cores} cores, {options.in_flight} in flight")
    print(f"  {'':<10}{'us a batch':>12}{'CPU us':>9}{'above rows':>12}")
    for name, mine in times.items():
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        above = mine.middle - times["rows"].middle
        print(f"  {name:<10}{mine.middle * 1e6:>12.0f}{cpu * 1e6:>9.0f}{above * 1e6:>12.0f}")


def network(options: argparse.Namespace) -> None:
    race = Race(options.setting, options.cores)
    factories = {
        "dense": partial(Torch, race, False),
        "plain": partial(Torch, race, True),
        "loop": partial(OwnLoop, race, options.in_flight),
    }
    times = take_turns(factories, race.cores, 40, options.rounds)
    print(f"{machine()}\n{race.setting}, batches of {BATCH:,}, {race.cores} cores, {options.in_flight} in flight")
    print(f"  {'':<10}{'examples/s':>12}{'ms':>9}{'CPU ms':>9}{'x dense':>9}{'x plain':>9}")
    for name, mine in times.items():
        ratios = [mine.times_faster(times[rival]) for rival in ("dense", "plain")]
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        print(f"  {name:<10}{BATCH / mine.middle:>12,.0f}{mine.middle * 1e3:>9.2f}{cpu * 1e3:>9.2f}", end="")
        print(f"{ratios[0]:>9.2f}{ratios[1]:>9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What the engine costs in a user's own loop.")
    parser.add_argument("--setting", choices=["empty", *sorted(SETTINGS)], default="empty")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="their median is reported")
    options = parser.parse_args()
    (empty if options.setting == "empty" else network)(options)


if __name__ == "__main__":
    main()
