"""Speed of a CTR training step, in examples/s: ours, plain PyTorch, the bare dense network.

    python -m benchmarks.clicks.step  # Criteo-shaped, DLRM, one core
    python -m benchmarks.clicks.step --cores 2 --setting deepfm

Settings, batches of 4096, dimension 16: dlrm (26 ids, 13 numbers, 512-256-16 and 512-256-1), deepfm (26 ids, 13
numbers, 400-400-400), sparse (100 ids, no numbers, a plain network of 64-32). Ids are Zipf-skewed over a million keys.
Rows take element-wise Adagrad, the network Adam.

"dense" is the network alone under torch: forward, gradients by parameters and inputs, Adam; the limit that a step with
rows is measured against. "plain" is what a user writes: one nn.EmbeddingBag(sparse=True), torch.optim.Adagrad. "step"
is our `CtrStep` on planned batches, its rows already gathered. `turns` says how the contestants share the machine.
"""

import argparse
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.machine import machine
from benchmarks.turns import Contestant, StepContestant, take_turns
from marius_oac.batches import ClickBatch, TableIndices
from marius_oac.config.ctr import CtrConfig
from marius_oac.models.ctr.network import Network, make_network
from marius_oac.models.ctr.rows import TableColumns
from marius_oac.models.ctr.schema import Field, Inputs, Schema
from marius_oac.models.ctr.step import CtrStep
from marius_oac.runtime import blas
from marius_oac.types import map_arrays

BATCH, DIMENSION, KEYS = 4096, 16, 1_000_000
DRAWN = 8  # batches, again and again
CPU = torch.device("cpu")
SETTINGS = {
    "dlrm": (26, 13, {"network": "dlrm", "bottom": [512, 256], "hidden": [512, 256]}),
    "deepfm": (26, 13, {"network": "deepfm", "hidden": [400, 400, 400]}),
    "sparse": (100, 0, {"network": "deepfm", "hidden": [64, 32]}),
}


class PlainNetwork(Network):
    """A multilayer perceptron over all embeddings."""

    def __init__(self, features: int, hidden: tuple[int, ...]) -> None:
        nn.Module.__init__(self)
        layers: list[nn.Module] = []
        for width, following in zip((features * DIMENSION, *hidden[:-1]), hidden, strict=True):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], 1))

    def forward(self, inputs: Inputs) -> torch.Tensor:
        return self.layers(inputs.stacked.flatten(1)).squeeze(1)


@dataclass(frozen=True)
class Race:
    """What all contestants compute."""

    setting: str
    cores: int
    overrides: tuple[str, ...] = ()

    @property
    def features(self) -> int:
        return SETTINGS[self.setting][0]

    @property
    def numbers(self) -> int:
        return SETTINGS[self.setting][1]

    def config(self) -> CtrConfig:
        names = [f"c{i}" for i in range(self.features)]
        numeric = [f"n{i}" for i in range(self.numbers)]
        return CtrConfig.build(
            {
                "task": "ctr",
                "data": {"train": "none.csv", "categorical": names, "numeric": numeric},
                "model": {**SETTINGS[self.setting][2], "dimension": DIMENSION},
            },
            self.overrides,
        )

    def network(self) -> Network:
        config = self.config()
        if self.setting == "sparse":
            return PlainNetwork(self.features, config.model.hidden)
        fields = tuple(Field(each.name, DIMENSION) for each in config.data.categorical)
        return make_network(Schema(self.numbers, fields, (), None), config.model, 0)

    def draw(self) -> list["Batch"]:
        generator = np.random.default_rng(0)
        return [_draw(generator, self.features, self.numbers) for _ in range(DRAWN)]


@dataclass(frozen=True)
class Batch:
    """ids int64 [B, F], numbers float32 [B, N], labels float32 [B]."""

    ids: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray


def _draw(generator: np.random.Generator, features: int, numbers: int) -> Batch:
    keys = KEYS // features
    # As a Zipf law of exponent 1: the logarithm of the rank is uniform. Every feature has keys of its own.
    ranks = (keys ** generator.random((BATCH, features))).astype(np.int64) - 1
    ids = ranks + keys * np.arange(features)
    labels = generator.integers(2, size=BATCH).astype(np.float32)
    return Batch(ids, generator.random((BATCH, numbers), np.float32), labels)


class Torch(Contestant):
    """The network under torch, on any device; with a table of embeddings, or on inputs that are given."""

    def __init__(self, race: Race, table: bool, device: torch.device = CPU):
        torch.sparse.check_sparse_tensor_invariants.disable()
        config = race.config().training
        self._network, self._next, self._shape = race.network().to(device), 0, (BATCH, race.features, DIMENSION)
        dense = config.dense_optimizer
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(self._network.parameters(), lr=dense.learning_rate, eps=dense.epsilon)
        ]
        width = DIMENSION + self._network.first_order
        self._table = nn.EmbeddingBag(KEYS, width, mode="sum", sparse=True, device=device) if table else None
        if self._table is not None:
            nn.init.normal_(self._table.weight, std=config_scale(race))
            rate = config.optimizer.learning_rate
            self._optimizers.append(torch.optim.Adagrad(self._table.parameters(), lr=rate))
        self._given = torch.randn(BATCH * race.features, width, device=device) * config_scale(race)
        self._batches = [
            [torch.from_numpy(array).to(device) for array in (each.ids.reshape(-1, 1), each.numbers, each.labels)]
            for each in race.draw()
        ]

    def run(self, batches: int) -> None:
        for _ in range(batches):
            ids, numbers, labels = self._batches[self._next % DRAWN]
            self._next += 1
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            rows = self._given.detach().requires_grad_() if self._table is None else self._table(ids)
            stacked = rows[:, :DIMENSION].view(self._shape)
            weights = rows[:, DIMENSION].view(self._shape[:2]) if self._network.first_order else None
            inputs = Inputs(numbers, stacked.unbind(1), stacked, weights, {})
            loss = binary_cross_entropy_with_logits(self._network(inputs), labels)
            loss.backward()
            for optimizer in self._optimizers:
                optimizer.step()


def config_scale(race: Race) -> float:
    return race.config().model.init_scale


class OurStep(StepContestant):
    """Rows are arrays on the CPU, or tensors."""

    def __init__(self, race: Race, device: torch.device = CPU, tensors: bool = False):
        config, network = race.config(), race.network()
        layout = [TableColumns("embeddings_16", DIMENSION, tuple(range(race.features)))]
        generator = np.random.default_rng(2)
        width = DIMENSION + network.first_order
        batches = []
        for batch in race.draw():
            rows, local = np.unique(batch.ids, return_inverse=True)
            values = np.zeros((rows.size, 2 * width), np.float32)
            values[:, :width] = generator.normal(0, config_scale(race), (rows.size, width))
            indices = TableIndices(np.ascontiguousarray(local.reshape(batch.ids.shape).T))
            data = ClickBatch(numbers=batch.numbers, labels=batch.labels, tables=(indices,))
            if tensors:
                values = torch.from_numpy(values).to(device)
                data = map_arrays(data, lambda array: torch.from_numpy(array).to(device))
            batches.append((values, data))
        super().__init__(CtrStep(config, layout, network, device, race.cores), batches)


def main() -> None:
    parser = argparse.ArgumentParser(description="Examples/s of our CTR step, against PyTorch and the bare network.")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="dlrm")
    parser.add_argument("--rounds", type=int, default=9, help="their median is reported")
    options = parser.parse_args()
    race = Race(options.setting, options.cores)
    factories = {
        "dense": partial(Torch, race, False),
        "plain": partial(Torch, race, True),
        "step": partial(OurStep, race),
    }
    times = take_turns(factories, race.cores, 4, options.rounds)
    print(
        f"{machine()}\nNumPy {np.__version__} with {blas.kernels()} kernels, {race.cores} cores\n"
        f"{race.setting}, batches of {BATCH:,}, "
        f"{race.features} ids, {race.numbers} numbers, dimension {DIMENSION}"
    )
    print(f"  {'':<10}{'examples/s':>12}{'ms':>9}{'CPU ms':>9}{'x dense':>9}{'x plain':>9}")
    for name, mine in times.items():
        ratios = [mine.times_faster(times[rival]) for rival in ("dense", "plain")]
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        print(f"  {name:<10}{BATCH / mine.middle:>12,.0f}{mine.middle * 1e3:>9.2f}{cpu * 1e3:>9.2f}", end="")
        print(f"{ratios[0]:>9.2f}{ratios[1]:>9.2f}")


if __name__ == "__main__":
    main()
