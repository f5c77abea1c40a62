"""Neighbour sampling with two threads: ours, dgl's, and memory's own speed.

    python -m benchmarks.graphs.sampling                 # 10^6 nodes, 10^7 edges, degrees alike
    python -m benchmarks.graphs.sampling --exponent 0.8  # hubs

One layer: ten neighbours of each seed, with the numbers of their edges: `NeighborSampler.draw` against
`dgl.sampling.sample_neighbors`. Two layers: ten neighbours of each seed and of each of these, relabelled:
`NeighborSampler.sample`, which also sorts the rows, against `sample_neighbors` and `to_block` in turn (dgl's fused
sampler is passed by: of int32 graphs it returns invalid blocks). All ids are int64. Figures are sampled edges a second.

Contestants have a process of their own, on the same cores, and take turns; ratios are medians of those within a round,
by the clock and by processor time, which a busy machine distorts less. `ours` runs as in training: each thread samples
batches of its own. dgl samples batch after batch, each with all threads of its pool; `dgl, by batch` with a batch per
thread. `ours, own edges hidden` leaves out a batch's own edges, half as many as seeds. `limit` reads as many 8-byte
words as `ours` samples edges, at random places of as much memory as the graph's neighbours take.

dgl is no part of this project: `pip install dgl==1.1.3 packaging`, Python up to 3.11. Without it the rest is measured.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import tempfile
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.machine import machine
from benchmarks.turns import Contestant, Times, take_turns
from marius_oac.data.neighbors.neighbors import open_neighbors
from marius_oac.data.neighbors.sampling import NeighborSampler
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import below, bits_at, stream_key

_CASES = (("one layer", 1_000, (10,)), ("one layer", 10_000, (10,)), ("one layer", 100_000, (10,)),
          ("two layers", 1_000, (10, 10)), ("two layers", 10_000, (10, 10)))  # fmt: skip
_SEEDS_A_TURN = 400_000
_KEPT = 16  # sets of seeds that are drawn beforehand


@dataclass(frozen=True)
class Case:
    folder: str
    num_nodes: int
    seeds: int
    fanouts: tuple[int, ...]
    threads: int

    @property
    def batches(self) -> int:
        """Of a turn."""
        return max(4, _SEEDS_A_TURN // self.seeds // 10 ** (len(self.fanouts) - 1))

    def draw_seeds(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.choice(self.num_nodes, self.seeds, replace=False) for _ in range(_KEPT)]

    def edges(self) -> np.ndarray:
        return np.load(Path(self.folder) / "edges.npy", mmap_mode="r")

    def neighbors(self):
        return open_neighbors(Path(self.folder) / "in", self.edges(), self.num_nodes, 0, "in", "generated")


class Batches(Contestant):
    """Samples batches, several at a time if there are workers; its report is the mean number of edges."""

    def __init__(self, case: Case, workers: int) -> None:
        self.case, self.seeds, self.found = case, case.draw_seeds(), []
        self._workers = ThreadPoolExecutor(workers)
        self._share, self._done = workers, 0

    @abstractmethod
    def sample(self, batch: int) -> int:
        """Returns how many edges it sampled."""

    def run(self, batches: int) -> None:
        numbers = range(self._done, self._done + batches)
        self._done += batches
        parts = [numbers[k :: self._share] for k in range(self._share)]
        for found in self._workers.map(lambda part: [self.sample(batch) for batch in part], parts):
            self.found += found

    def report(self) -> float:
        return float(np.mean(self.found))

    def close(self) -> None:
        self._workers.shutdown()


class Ours(Batches):
    def __init__(self, case: Case, hide: bool) -> None:
        super().__init__(case, case.threads)
        neighbors = case.neighbors()
        self._sampler = NeighborSampler(neighbors, case.fanouts, 0)
        rng, count = np.random.default_rng(1), case.seeds // 2 if hide else 0
        self._hidden = [rng.integers(0, len(neighbors.entries), count) for _ in range(_KEPT)]

    def sample(self, batch: int) -> int:
        seeds, hidden = self.seeds[batch % _KEPT], self._hidden[batch % _KEPT]
        if len(self.case.fanouts) == 1:
            return len(self._sampler.draw(seeds, self.case.fanouts[0], stream_key(0, "batch", batch), hidden).edges)
        return sum(len(layer.edges) for layer in self._sampler.sample(seeds, 0, batch, hidden).layers)


class Dgl(Batches):
    def __init__(self, case: Case, by_batch: bool) -> None:
        import dgl
        import torch

        torch.set_num_threads(1 if by_batch else case.threads)
        super().__init__(case, case.threads if by_batch else 1)
        self._dgl, self.seeds = dgl, [torch.from_numpy(seeds) for seeds in self.seeds]
        heads, tails = (torch.from_numpy(np.ascontiguousarray(column)) for column in self.case.edges().T)
        self._graph = dgl.graph((heads, tails), num_nodes=case.num_nodes).formats(["csc"])
        self._graph.create_formats_()

    def sample(self, batch: int) -> int:
        nodes, count = self.seeds[batch % _KEPT], 0
        for fanout in self.case.fanouts:
            found = self._dgl.sampling.sample_neighbors(self._graph, nodes, fanout)
            count += found.num_edges()
            if len(self.case.fanouts) > 1:
                nodes = self._dgl.to_block(found, nodes).srcdata[self._dgl.NID]
        return count


class Limit(Batches):
    def __init__(self, case: Case) -> None:
        super().__init__(case, case.threads)
        self._words = case.neighbors().entries.view(np.ndarray).ravel().copy()
        self._count = case.seeds * 10 * sum(11**layer for layer in range(len(case.fanouts)))

    def sample(self, batch: int) -> int:
        _gather(np.uint64(batch), self._words, self._count)
        return self._count


@compiled
def _gather(key, words, count):
    total = 0
    for i in range(count):
        total += words[below(bits_at(key, i), words.size)]
    return total


def contestants(case: Case) -> dict:
    factories = {
        "ours": functools.partial(Ours, case, False),
        "ours, own edges hidden": functools.partial(Ours, case, True),
        "limit": functools.partial(Limit, case),
    }
    if importlib.util.find_spec("dgl"):
        factories["dgl"] = functools.partial(Dgl, case, False)
        factories["dgl, by batch"] = functools.partial(Dgl, case, True)
    return factories


def show(name: str, case: Case, times: dict[str, Times]) -> None:
    print(f"\n{name}, {case.seeds:,} seeds, fan-out {list(case.fanouts)}, {times['ours'].report:,.0f} edges a batch")
    print(f"  {'':<24}{'M edges/s':>10}{'lowest':>8}{'highest':>9}{'cores':>7}{'ours is x':>11}{'by CPU x':>10}")
    ours = times["ours"]
    for contestant, found in times.items():
        rates = sorted(found.report / seconds / 1e6 for seconds in found.seconds)
        cores = sum(found.cpu_seconds) / sum(found.seconds)
        edges = ours.report / found.report
        by_cpu = statistics.median(b / a for a, b in zip(ours.cpu_seconds, found.cpu_seconds, strict=True))
        line = f"{statistics.median(rates):>10.1f}{rates[0]:>8.1f}{rates[-1]:>9.1f}{cores:>7.2f}"
        print(f"  {contestant:<24}{line}{ours.times_faster(found) * edges:>11.2f}{by_cpu * edges:>10.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--exponent", type=float, default=0.0, help="P(rank k) ~ k ** -exponent; 0: all alike")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", type=int, help="one of them, from 0")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before the processes begin that read it
    print(machine())
    if not importlib.util.find_spec("dgl"):
        print("dgl is missing: pip install dgl==1.1.3 packaging; the rest is measured without it")
    spec = GeneratedGraph(
        num_nodes=options.nodes, num_edges=options.edges, exponent=options.exponent, num_clusters=1, noise=0.0
    )
    with tempfile.TemporaryDirectory() as folder:
        write_graph(spec, Path(folder) / "edges.npy")
        for number, (name, seeds, fanouts) in enumerate(_CASES):
            if options.case in (None, number):
                case = Case(folder, options.nodes, seeds, fanouts, options.threads)
                case.neighbors()
                show(name, case, take_turns(contestants(case), options.threads, case.batches, options.rounds))


if __name__ == "__main__":
    main()
