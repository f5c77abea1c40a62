"""Speed of an encoder's layer, forward and backward, in edges/s: ours, dgl's, and plain torch.

    python -m benchmarks.encoders.layers  # one core and two; dgl takes part where it is installed
    python -m benchmarks.encoders.layers --cores 2 --kinds gat

Blocks of some outputs with ten neighbours each, drawn from 100,000 nodes; rows of D floats become rows of D floats:
GraphSAGE (mean), and GAT of 5 heads of D / 5. Each turn gets the block's offsets and sources and makes of them what it
needs, for a training step has a new block each time: dgl makes a `DGLBlock`, we group the edges by source. "torch" is
the same layer with `index_add_`, as a user writes it. Gradients by values and parameters. In brackets: ratios of
processor time, for a machine that others use too. `turns` says how the contestants share it.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from dataclasses import dataclass
from functools import partial
from operator import truediv

import numpy as np
import torch
from torch import nn

from benchmarks.machine import machine
from benchmarks.turns import Contestant, take_turns
from marius_oac.config.encoder import EncoderConfig
from marius_oac.models.compute.products import PooledProducts
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.encoder import make_encoder
from marius_oac.runtime import blas
from marius_oac.runtime.thread_pool import ThreadPool

NODES, FAN_OUT, HEADS = 100_000, 10, 5
DRAWN = 4  # blocks, again and again


@dataclass(frozen=True)
class Case:
    """What all contestants compute: a layer of this kind (`sage`, `gat`)."""

    kind: str
    outputs: int
    dimension: int
    cores: int

    def blocks(self) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Offsets, sources, inputs."""
        generator, drawn = np.random.default_rng(0), []
        for _ in range(DRAWN):
            seeds = generator.choice(NODES, self.outputs, replace=False)
            picked = generator.integers(NODES, size=self.outputs * FAN_OUT)
            places = np.full(NODES, -1)
            places[seeds] = np.arange(self.outputs)
            others = np.setdiff1d(picked, seeds)
            places[others] = self.outputs + np.arange(len(others))
            offsets = np.arange(self.outputs + 1) * FAN_OUT
            drawn.append((torch.from_numpy(offsets), torch.from_numpy(places[picked]), self.outputs + len(others)))
        return drawn

    def config(self) -> EncoderConfig:
        layer = {"kind": "sage", "dimension": self.dimension}
        if self.kind == "gat":
            width = self.dimension // HEADS
            layer = {"kind": "gat", "dimension": width, "heads": HEADS, "merge": "concat", "attend_to_self": False}
        return EncoderConfig(layers=[layer])


class Layer(Contestant):
    """Runs `forward(values, offsets, sources, inputs)` of a subclass and what it is differentiated to."""

    def __init__(self, case: Case) -> None:
        self._case, self._blocks, self._next = case, case.blocks(), 0
        generator = torch.Generator().manual_seed(0)
        most = max(inputs for _, _, inputs in self._blocks)
        self._values = torch.randn(most, case.dimension, generator=generator)
        self._gradient = torch.randn(case.outputs, case.dimension, generator=generator)
        self._module = self.make()

    def make(self) -> nn.Module:
        return make_encoder(self._case.config(), self._case.dimension, 0)

    def run(self, batches: int) -> None:
        for _ in range(batches):
            offsets, sources, inputs = self._blocks[self._next % DRAWN]
            self._next += 1
            values = self._values[:inputs].detach().requires_grad_()
            self._module.zero_grad()
            self.forward(values, offsets, sources, inputs).backward(self._gradient)


class Ours(Layer):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        torch.set_num_threads(1)
        self._lanes = ThreadPool(case.cores)
        self._limit = blas.one_thread_per_product()
        self._limit.__enter__()
        self._products = PooledProducts(self._lanes, None)

    def forward(self, values, offsets, sources, inputs):
        return self._module(values, [Block(offsets, sources, inputs)], self._products)

    def close(self) -> None:
        self._limit.__exit__(None, None, None)
        self._lanes.close()


class Dgl(Layer):
    def make(self) -> nn.Module:
        from marius_oac.dgl import load, to_dgl

        dgl, width = load(), self._case.dimension
        self._to_dgl = to_dgl
        if self._case.kind == "sage":
            return dgl.nn.SAGEConv(width, width, "mean")
        return dgl.nn.GATConv(width, width // HEADS, HEADS, allow_zero_in_degree=True)

    def forward(self, values, offsets, sources, inputs):
        return self._module(self._to_dgl(Block(offsets, sources, inputs)), values).flatten(1)


class Torch(Layer):
    """Our layer's parameters, torch's operations."""

    def forward(self, values, offsets, sources, inputs):
        (layer,), outputs = self._module.layers, self._case.outputs
        destinations = torch.repeat_interleave(torch.arange(outputs), offsets[1:] - offsets[:-1])
        if self._case.kind == "sage":
            sums = values.new_zeros(outputs, values.shape[1]).index_add_(0, destinations, values[sources])
            mean = sums / (offsets[1:] - offsets[:-1]).clamp(min=1)[:, None]
            own = nn.functional.linear(values[:outputs], layer.own, layer.bias)
            return own + nn.functional.linear(mean, layer.neighbours)
        projected = nn.functional.linear(values, layer.weight).view(inputs, HEADS, -1)
        left, right = (projected * layer.source).sum(2), (projected[:outputs] * layer.destination).sum(2)
        scores = nn.functional.leaky_relu(left[sources] + right[destinations], 0.2)
        places = destinations[:, None].expand_as(scores)
        largest = torch.full_like(right, -torch.inf).scatter_reduce(0, places, scores.detach(), "amax")
        parts = torch.exp(scores - largest[destinations])
        weights = parts / torch.zeros_like(right).index_add_(0, destinations, parts)[destinations]
        sums = torch.zeros_like(projected[:outputs])
        return sums.index_add_(0, destinations, projected[sources] * weights[..., None]).flatten(1) + layer.bias


def _has_dgl() -> bool:
    return importlib.util.find_spec("dgl") is not None


def report(case: Case, rounds: int) -> None:
    contestants = {"ours": Ours, "torch": Torch}
    if _has_dgl():
        contestants["dgl"] = Dgl
    factories = {name: partial(contestant, case) for name, contestant in contestants.items()}
    times = take_turns(factories, case.cores, max(2, 20_000 // case.outputs), rounds)
    edges, ours = case.outputs * FAN_OUT, times["ours"]
    others = [name for name in ("dgl", "torch") if name in times]
    work = {name: statistics.median(map(truediv, times[name].cpu_seconds, ours.cpu_seconds)) for name in others}
    cells = [f"{times[name].middle * 1e3:.2f}" if name in times else "" for name in ("ours", "dgl", "torch")]
    ratios = [f"{ours.times_faster(times[name]):.2f} ({work[name]:.2f})" for name in others]
    print(
        f"| {case.kind} | {case.outputs:,} | {case.dimension} | {case.cores} | {edges / ours.middle / 1e6:.1f} "
        f"| {' | '.join(cells)} | {' | '.join(ratios)} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--outputs", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--kinds", nargs="+", choices=("sage", "gat"), default=["sage", "gat"])
    parser.add_argument("--rounds", type=int, default=9, help="their median is reported")
    options = parser.parse_args()
    print(machine())
    columns = ["layer", "outputs", "floats", "cores", "million edges/s", "ours, ms", "dgl, ms", "torch, ms"]
    columns += [f"{name}'s time / ours" for name in ("dgl", "torch") if name != "dgl" or _has_dgl()]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for kind in options.kinds:
        for outputs in options.outputs:
            for dimension in options.dimensions:
                for cores in options.cores:
                    report(Case(kind, outputs, dimension, cores), options.rounds)


if __name__ == "__main__":
    main()
