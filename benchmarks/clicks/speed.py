"""Training on clicks end to end from Parquet, in examples/s: ours, plain PyTorch, fused kernels, the bare network.

    python -m benchmarks.clicks.speed  # Criteo-shaped, DLRM, one core
    python -m benchmarks.clicks.speed --cores 2 --setting sparse --keys 33000000

Settings as in `benchmarks.clicks.step`: dlrm, deepfm (26 ids, 13 numbers), sparse (100 ids). A log is generated first.

"dense" is the network alone under torch on inputs that are given: forward, backward, Adam; no ids, no file. "plain" is
what a user writes: pyarrow reads batches, ids become rows by the remainder of a division (so unlike ours it merges
keys), one nn.EmbeddingBag(sparse=True) with torch.optim.Adagrad. "fused" is the same with FBGEMM's table-batched
embeddings and their fused Adagrad, the kernels under torchrec; it takes part where fbgemm_gpu is installed. "oac" and
"sync" are our whole pipeline: files, keys, rows, network. `turns` says how the contestants share the machine.
"""

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.clicks.step import BATCH, DIMENSION, SETTINGS, PlainNetwork
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from benchmarks.turns import Contestant, take_turns
from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.batches import LogPlanner, LogSchedule, LogSegment
from marius_oac.data.logs.files import scan_files
from marius_oac.models.ctr.network import Network, make_network
from marius_oac.models.ctr.schema import Inputs
from marius_oac.pipeline.rows import LocalSource
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runs.stores import Tables
from marius_oac.runtime import blas
from marius_oac.runtime.telemetry import Telemetry
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.tasks.ctr.build import capacity_of, make_ctr_step, make_key_table, make_schema, row_layout, tables_of

MANY_PASSES = 1000


@dataclass(frozen=True)
class Race:
    """What all contestants train."""

    setting: str
    path: str
    spec: LogSpec
    cores: int
    in_flight: int
    overrides: tuple[str, ...] = ()

    def config(self, mode: str = "oac") -> CtrConfig:
        return CtrConfig.build(
            {
                "task": "ctr",
                "data": {"train": self.path, **self.spec.schema()},
                "model": {**SETTINGS[self.setting][2], "dimension": DIMENSION},
                "training": {"batch_size": BATCH, "epochs": MANY_PASSES},
                "pipeline": {"mode": mode, "in_flight": self.in_flight},
                "keys": {"capacity": 2 * self.spec.keys},
            },
            self.overrides,
        )

    def network(self) -> Network:
        config = self.config()
        if self.setting == "sparse":
            return PlainNetwork(self.spec.categorical, config.model.hidden)
        return make_network(make_schema(config), config.model, 0)


class Torch(Contestant):
    """The network under torch: on inputs that are given, over an EmbeddingBag, or over FBGEMM's fused tables."""

    def __init__(self, race: Race, kind: str):
        torch.sparse.check_sparse_tensor_invariants.disable()
        config = race.config()
        self._race, self._kind, self._network = race, kind, race.network()
        dense = config.training.dense_optimizer
        self._optimizers = [torch.optim.Adam(self._network.parameters(), lr=dense.learning_rate, eps=dense.epsilon)]
        self._width = DIMENSION + self._network.first_order
        sizes = race.spec.vocabulary_sizes
        self._sizes, rate = np.array(sizes), config.training.optimizer.learning_rate
        self._first = torch.from_numpy(np.concatenate([[0], np.cumsum(self._sizes)[:-1]]))
        if kind == "plain":
            self._table = nn.EmbeddingBag(int(self._sizes.sum()), self._width, mode="sum", sparse=True)
            nn.init.normal_(self._table.weight, std=config.model.init_scale)
            self._optimizers.append(torch.optim.Adagrad(self._table.parameters(), lr=rate))
        elif kind == "fused":
            self._table = _fused(sizes, self._width, rate, config.training.optimizer.epsilon)
        self._given = torch.randn(BATCH, len(sizes), self._width) * config.model.init_scale
        self._batches = self._read() if kind != "dense" else None
        self._numbers, self._labels = torch.randn(BATCH, race.spec.numeric), torch.randint(2, (BATCH,)).float()

    def _read(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        schema = self._race.spec.schema()
        while True:
            for batch in pq.ParquetFile(self._race.path).iter_batches(BATCH):
                ids = np.stack([batch.column(name).to_numpy() for name in schema["categorical"]])
                rows = torch.from_numpy(ids % self._sizes[:, None])
                numbers = np.empty((batch.num_rows, len(schema["numeric"])), np.float32)
                for j, name in enumerate(schema["numeric"]):
                    numbers[:, j] = batch.column(name).to_numpy()
                labels = torch.from_numpy(batch.column("label").to_numpy().astype(np.float32))
                yield rows, torch.from_numpy(numbers), labels

    def _look_up(self, rows: torch.Tensor) -> torch.Tensor:
        """[B, F, width] of ids [F, B]."""
        features, size = rows.shape
        if self._kind == "plain":
            ids = (rows + self._first[:, None]).t().reshape(-1, 1)
            return self._table(ids).view(size, features, self._width)
        out = self._table(rows.reshape(-1), torch.arange(features * size + 1))
        return out.view(size, features, -1)[..., : self._width]  # the kernels' rows are padded

    def run(self, batches: int) -> None:
        for _ in range(batches):
            if self._batches is None:
                given, numbers, labels = self._given.detach().requires_grad_(), self._numbers, self._labels
            else:
                rows, numbers, labels = next(self._batches)
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            found = given if self._batches is None else self._look_up(rows)
            stacked = found[..., :DIMENSION]
            weights = found[..., DIMENSION] if self._network.first_order else None
            inputs = Inputs(numbers, stacked.unbind(1), stacked, weights, {})
            loss = binary_cross_entropy_with_logits(self._network(inputs), labels)
            loss.backward()
            for optimizer in self._optimizers:
                optimizer.step()
            loss.item()


def _fused(sizes, width: int, rate: float, epsilon: float) -> nn.Module:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    width += -width % 4  # the kernels' own restriction
    specs = [(int(size), width, EmbeddingLocation.HOST, ComputeDevice.CPU) for size in sizes]
    return SplitTableBatchedEmbeddingBagsCodegen(
        specs, optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=rate, eps=epsilon
    )


class OurPipeline(Contestant):
    """Files, keys, rows and network, as `marius-oac train` runs them."""

    def __init__(self, race: Race, mode: str):
        config, network = race.config(mode), race.network()
        files = scan_files(config.data.train, config.data)
        tables = tables_of(config, network)
        with ExitStack() as stack:
            layouts = {table.name: row_layout(config, table, network) for table in tables}
            capacities = {name: capacity_of(config, layout) for name, layout in layouts.items()}
            place = Tables(config.storage, None, layouts, capacities, stack)
            pool = stack.enter_context(closing(ThreadPool(race.cores)))
            key_tables = [make_key_table(config, place, table.name, pool=pool) for table in tables]
            schedule = LogSchedule(files, [LogSegment(0, 1, MANY_PASSES)], BATCH)
            planner = LogPlanner(config, files, schedule, tables, key_tables, pool=pool)
            stack.callback(planner.close)
            step = make_ctr_step(config, tables, network, torch.device("cpu"), race.cores)
            stack.callback(step.close)
            self._stack = stack.pop_all()
        self._telemetry, self._next, self._keys = Telemetry(), 0, key_tables
        source = LocalSource([table.store for table in key_tables], config.pipeline.mode)
        self._pipeline = Pipeline(
            planner, source, step, config.pipeline, torch.device("cpu"), self._telemetry, lambda _: None
        )

    def run(self, batches: int) -> None:
        self._next = self._pipeline.run(self._next, self._next + batches)

    def report(self) -> str:
        stages = self._telemetry.total()
        keys = sum(map(len, self._keys))
        return f"{keys:,} keys; ms per batch: " + ", ".join(
            f"{stage} {stages[stage] / self._next * 1e3:.1f}" for stage in stages
        )

    def close(self) -> None:
        self._stack.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Examples/s of training on clicks, end to end from Parquet.")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="dlrm")
    parser.add_argument("--keys", type=int, default=5_600_000, help="distinct keys of the log")
    parser.add_argument("--rows", type=int, default=400_000, help="examples of the log")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--batches", type=int, default=10, help="of a turn")
    parser.add_argument("--rounds", type=int, default=7, help="their median is reported")
    options = parser.parse_args()
    features, numbers, _ = SETTINGS[options.setting]
    spec = LogSpec(categorical=features, numeric=numbers, keys=options.keys, skew=1.05)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.parquet"
        write_day(path, 0, options.rows, spec)
        race = Race(options.setting, str(path), spec, options.cores, options.in_flight)
        factories = {"dense": partial(Torch, race, "dense"), "plain": partial(Torch, race, "plain")}
        if importlib.util.find_spec("fbgemm_gpu"):
            factories["fused"] = partial(Torch, race, "fused")
        factories |= {mode: partial(OurPipeline, race, mode) for mode in ("oac", "sync")}
        times = take_turns(factories, race.cores, options.batches, options.rounds)
    print(
        f"{machine()}\nNumPy {np.__version__} with {blas.kernels()} kernels, {race.cores} cores\n"
        f"{race.setting}, batches of {BATCH:,}, "
        f"{features} ids of {options.keys:,} keys, {numbers} numbers, dimension {DIMENSION}"
    )
    rivals = [name for name in ("dense", "plain", "fused") if name in times]
    print(f"  {'':<8}{'examples/s':>12}{'ms':>9}{'CPU ms':>9}" + "".join(f"{'x ' + name:>9}" for name in rivals))
    for name, mine in times.items():
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        print(f"  {name:<8}{BATCH / mine.middle:>12,.0f}{mine.middle * 1e3:>9.2f}{cpu * 1e3:>9.2f}", end="")
        print("".join(f"{mine.times_faster(times[rival]):>9.2f}" for rival in rivals))
    print(f"  oac, {times['oac'].report}")


if __name__ == "__main__":
    main()
