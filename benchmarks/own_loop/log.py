"""The engine in a loop over a click log: against torch's and FBGEMM's tables, and with a quarter of its rows in memory.

    python -m benchmarks.own_loop.log                 # 100 ids of 33 million keys
    python -m benchmarks.own_loop.log --setting disk  # DLRM: rows on disk against rows in memory

The loop, its network and its reading of Parquet are those of `benchmarks.clicks.speed`, under torch in all contestants:
"dense" is the network alone, on inputs that are given; "plain" has nn.EmbeddingBag(sparse=True) of all keys with
torch.optim.Adagrad; "fused" FBGEMM's tables, where fbgemm_gpu is installed; "loop" the engine's table, which grows with
the keys that it sees. All look for the same keys, which the loop makes.

On disk, a pass over the log gives keys their rows before, in the log's order, and all rows are written. Measured is a
second pass from its middle on: a pass begins with keys that lie side by side. "memory" is a table in memory, "disk" one
with a quarter of its rows there. `turns` says how the contestants share the machine.
"""

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import torch
from torch import nn

import marius_oac.torch as mt
from benchmarks.clicks.speed import Race, Torch
from benchmarks.clicks.step import BATCH, DIMENSION, SETTINGS
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from benchmarks.turns import Contestant, take_turns

ROW_BYTES = 2 * DIMENSION * 4
"""Of a value and Adagrad's sums."""


class OwnLoop(Torch):
    """The network of `Torch` over the engine's table; `passes`: a pass comes before, and a second one has begun."""

    def __init__(self, race: Race, passes: bool = False, memory: int | None = None, path: str | None = None):
        super().__init__(race, "loop")
        config = race.config()
        self._table = mt.EmbeddingBag(
            self._width, std=config.model.init_scale, capacity=int(self._sizes.sum()), memory=memory, path=path
        )
        rows = mt.Adagrad(self._table, lr=config.training.optimizer.learning_rate)
        self._optimizers.append(rows)
        self._engine = mt.Engine(nn.ModuleList([self._table]), {self._table: 0}, [rows], in_flight=race.in_flight)
        drawn = self._keyed()
        if passes:
            whole = -(-pq.ParquetFile(race.path).metadata.num_rows // BATCH)
            for _ in self._engine.batches(islice(drawn, whole)):
                pass
            drawn = islice(drawn, whole // 2, None)
        self._batches = self._engine.batches(drawn)

    def _keyed(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for rows, numbers, labels in self._read():
            yield (rows + self._first[:, None]).t().reshape(-1, 1), numbers, labels

    def _look_up(self, keys: torch.Tensor) -> torch.Tensor:
        return self._table(keys).view(-1, len(self._sizes), self._width)

    def report(self) -> str:
        return f"{len(self._table.table):,} keys, RSS {psutil.Process().memory_info().rss >> 20:,} MiB"

    def close(self) -> None:
        self._engine.close()


def distinct_keys(race: Race) -> int:
    """How many different keys contestants find in the log."""
    pairs = zip(race.spec.schema()["categorical"], race.spec.vocabulary_sizes, strict=True)
    columns = ((pq.read_table(race.path, columns=[name]).column(0).to_numpy(), size) for name, size in pairs)
    return sum(np.unique(column % size).size for column, size in columns)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the engine does in a user's own loop over a click log.")
    parser.add_argument("--setting", choices=["sparse", "disk"], default="sparse")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--keys", type=int, default=33_000_000, help="distinct keys of the log's distribution")
    parser.add_argument("--rows", type=int, help="examples of the log (500,000; on disk 4,000,000)")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--batches", type=int, default=12, help="of a turn")
    parser.add_argument("--rounds", type=int, default=6, help="their median is reported")
    parser.add_argument("--folder", help="for the log and rows on disk; a temporary one is made there")
    options = parser.parse_args()
    disk = options.setting == "disk"
    setting = "dlrm" if disk else "sparse"
    features, numbers, _ = SETTINGS[setting]
    spec = LogSpec(categorical=features, numeric=numbers, keys=options.keys, skew=1.05)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "day.parquet"
        write_day(path, 0, options.rows or (4_000_000 if disk else 500_000), spec)
        race = Race(setting, str(path), spec, options.cores, options.in_flight)
        count = distinct_keys(race)
        found = f"{count:,} keys of {options.keys:,}"
        factories: dict[str, partial[Contestant]] = {"dense": partial(Torch, race, "dense")}
        if disk:
            memory = count * ROW_BYTES // 4
            found += f", {memory >> 20:,} MiB of {4 * memory >> 20:,} in memory"
            factories |= {
                "memory": partial(OwnLoop, race, True),
                "disk": partial(OwnLoop, race, True, memory, folder),
            }
        else:
            factories["plain"] = partial(Torch, race, "plain")
            if importlib.util.find_spec("fbgemm_gpu"):
                factories["fused"] = partial(Torch, race, "fused")
            factories["loop"] = partial(OwnLoop, race)
        times = take_turns(factories, race.cores, options.batches, options.rounds)
    print(f"{machine()}\n{setting}, batches of {BATCH:,}, {features} ids, {found}, {numbers} numbers, dimension "
          f"{DIMENSION}, {race.cores} cores, {options.in_flight} in flight")  # fmt: skip
    rivals = [*times][:-1]
    print(f"  {'':<8}{'examples/s':>12}{'ms':>9}{'CPU ms':>9}" + "".join(f"{'x ' + name:>10}" for name in rivals))
    for name, mine in times.items():
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        print(f"  {name:<8}{BATCH / mine.middle:>12,.0f}{mine.middle * 1e3:>9.2f}{cpu * 1e3:>9.2f}", end="")
        print("".join(f"{mine.times_faster(times[rival]):>10.2f}" for rival in rivals), mine.report or "")


if __name__ == "__main__":
    main()
