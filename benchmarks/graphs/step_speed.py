"""Speed of training link prediction, in triples/s: our pipeline and its step, plain PyTorch, the bare products.

    python -m benchmarks.graphs.step_speed  # batch 1000, 500 negatives, DistMult, one core
    python -m benchmarks.graphs.step_speed --cores 2 --setting b --decoder complex

Setting a: batches of 1000 with 500 negatives per side; b: batches of 10000 in 10 chunks with 100 negatives each. Both
sides are corrupted, 14,541 entities, 237 relations, dimension 100, softmax, element-wise Adagrad, uniform edges.
"products" are the six matrix products of a batch alone, by torch and by NumPy, whose BLAS ours uses; the limit of the
machine is the faster of the two. "plain" is what a user writes: nn.Embedding(sparse=True), autograd,
torch.optim.Adagrad. "step" is our `LinkPredictionStep` on planned batches, its rows already gathered; "oac" and "sync"
are the whole pipeline over a store: plan, read, validate, compute, write. `turns` says how the
contestants share the machine.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from benchmarks.machine import machine
from benchmarks.turns import Contestant, StepContestant, take_turns
from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.models.link_prediction.step import LinkPredictionStep, entity_width, relation_width
from marius_oac.pipeline.rows import LocalSource
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runtime import blas
from marius_oac.runtime.telemetry import Telemetry
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore

ENTITIES, RELATIONS, DIMENSION = 14_541, 237, 100
SETTINGS = {"a": (1_000, 1, 500), "b": (10_000, 10, 100)}
LEARNING_RATE, INITIAL_SCALE = 0.1, 1e-3
DRAWN = 20  # batches, again and again
PRODUCTS = ("products, torch", "products, NumPy")


@dataclass(frozen=True)
class Race:
    """What all contestants compute."""

    decoder: str
    setting: str
    cores: int
    in_flight: int
    overrides: tuple[str, ...] = ()

    def config(self, mode: str = "oac") -> Config:
        size, chunks, count = SETTINGS[self.setting]
        return Config.build(
            {
                "data": {"path": "none"},
                "model": {"decoder": self.decoder, "dimension": DIMENSION},
                "training": {"batch_size": size, "negatives": {"count": count, "chunks": chunks}},
                "pipeline": {"mode": mode, "in_flight": self.in_flight},
            },
            self.overrides,
        )

    def draw(self) -> list["Edges"]:
        generator = np.random.default_rng(0)
        size, chunks, count = SETTINGS[self.setting]
        return [draw(generator, size, chunks, count) for _ in range(DRAWN)]


@dataclass(frozen=True)
class Edges:
    """One batch: ids of its edges [B] and of its negatives [2, C, K]."""

    heads: np.ndarray
    relations: np.ndarray
    tails: np.ndarray
    negatives: np.ndarray


def draw(generator: np.random.Generator, size: int, chunks: int, count: int) -> Edges:
    ids = generator.integers(ENTITIES, size=(2, size))
    relations = generator.integers(RELATIONS, size=size)
    return Edges(ids[0], relations, ids[1], generator.integers(ENTITIES, size=(2, chunks, count)))


def planned(edges: Edges) -> tuple[np.ndarray, EdgeBatch[np.ndarray]]:
    """The batch's unique entities, and its edges in local indices."""
    size, chunks = edges.heads.size, edges.negatives.shape[1]
    rows, local = np.unique(
        np.concatenate((edges.heads, edges.tails, edges.negatives.reshape(-1))), return_inverse=True
    )
    relation_rows, relations = np.unique(edges.relations, return_inverse=True)
    return rows, EdgeBatch(
        heads=local[:size],
        tails=local[size : 2 * size],
        negatives=local[2 * size :].reshape(edges.negatives.shape),
        relations=relations,
        relation_rows=relation_rows,
        chunk_offsets=tuple((np.arange(chunks + 1) * size // chunks).tolist()),
    )


class PlainModel(nn.Module):
    """DistMult, ComplEx or TransE (L2), as one would write it for PyTorch."""

    def __init__(self, decoder: str) -> None:
        super().__init__()
        self.decoder = decoder
        self.entities = nn.Embedding(ENTITIES, DIMENSION, sparse=True)
        self.relations = nn.Embedding(RELATIONS, DIMENSION, sparse=True)
        for table in (self.entities, self.relations):
            nn.init.normal_(table.weight, std=INITIAL_SCALE)

    def query(self, x: torch.Tensor, y: torch.Tensor, conjugate: bool) -> torch.Tensor:
        if self.decoder == "distmult":
            return x * y
        if self.decoder == "transe":
            return x - y if conjugate else x + y
        x_re, x_im = x.chunk(2, -1)
        y_re, y_im = y.chunk(2, -1)
        y_im = -y_im if conjugate else y_im
        return torch.cat((x_re * y_re - x_im * y_im, x_re * y_im + x_im * y_re), -1)

    def forward(self, heads, relations, tails, negatives) -> torch.Tensor:
        h, r, t = self.entities(heads), self.relations(relations), self.entities(tails)
        candidates = self.entities(negatives)  # [2, C, K, D]
        chunks = negatives.shape[1]
        losses = []
        for side, (anchor, target) in enumerate(((t, h), (h, t))):
            query = self.query(anchor, r, conjugate=side == 0)
            in_chunks = query.view(chunks, -1, DIMENSION)
            if self.decoder == "transe":
                positive = -(query - target).norm(dim=-1, keepdim=True)
                scores = -torch.cdist(in_chunks, candidates[side]).flatten(0, 1)
            else:
                positive = (query * target).sum(-1, keepdim=True)
                scores = torch.bmm(in_chunks, candidates[side].transpose(1, 2)).flatten(0, 1)
            logits = torch.cat((positive, scores), 1)
            first = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
            losses.append(nn.functional.cross_entropy(logits, first))
        return (losses[0] + losses[1]) / 2


def plain_step(race: Race) -> Callable[[int], object]:
    torch.sparse.check_sparse_tensor_invariants.disable()
    model, batches = PlainModel(race.decoder), race.draw()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    tensors = [
        [torch.from_numpy(array) for array in (each.heads, each.relations, each.tails, each.negatives)]
        for each in batches
    ]

    def run(i: int) -> float:
        optimizer.zero_grad()
        loss = model(*tensors[i])
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def products_by_torch(race: Race) -> Callable[[int], object]:
    size, chunks, count = SETTINGS[race.setting]
    queries, candidates = torch.randn(2, chunks, size // chunks, DIMENSION), torch.randn(2, chunks, count, DIMENSION)
    scores = torch.empty(2, chunks, size // chunks, count)
    query_gradients, candidate_gradients = torch.empty_like(queries), torch.empty_like(candidates)

    def run(_: int) -> None:
        for side in range(2):
            for c in range(chunks):
                torch.mm(queries[side, c], candidates[side, c].t(), out=scores[side, c])
                torch.mm(scores[side, c], candidates[side, c], out=query_gradients[side, c])
                torch.mm(scores[side, c].t(), queries[side, c], out=candidate_gradients[side, c])

    return run


def products_by_numpy(race: Race) -> Callable[[int], object]:
    threadpool_limits(limits=race.cores, user_api="blas")
    size, chunks, count = SETTINGS[race.setting]
    generator = np.random.default_rng(0)
    queries = generator.standard_normal((2, chunks, size // chunks, DIMENSION), np.float32)
    candidates = generator.standard_normal((2, chunks, count, DIMENSION), np.float32)
    scores = np.empty((2, chunks, size // chunks, count), np.float32)
    query_gradients, candidate_gradients = np.empty_like(queries), np.empty_like(candidates)

    def run(_: int) -> None:
        for side in range(2):
            for c in range(chunks):
                np.matmul(queries[side, c], candidates[side, c].T, out=scores[side, c])
                np.matmul(scores[side, c], candidates[side, c], out=query_gradients[side, c])
                np.matmul(scores[side, c].T, queries[side, c], out=candidate_gradients[side, c])

    return run


class Repeated(Contestant):
    """A function of the batch's number, over the drawn batches."""

    def __init__(self, make: Callable[[Race], Callable[[int], object]], race: Race):
        self._run, self._next = make(race), 0

    def run(self, batches: int) -> None:
        for _ in range(batches):
            self._run(self._next % DRAWN)
            self._next += 1


def _our_step(config: Config, cores: int) -> LinkPredictionStep:
    generator = np.random.default_rng(1)
    relations = generator.normal(0, INITIAL_SCALE, (RELATIONS, relation_width(config))).astype(np.float32)
    return LinkPredictionStep(config, RELATIONS, torch.device("cpu"), cores, relations)


class OurStep(StepContestant):
    def __init__(self, race: Race):
        generator = np.random.default_rng(2)
        batches = []
        for batch in race.draw():
            rows, data = planned(batch)
            values = np.zeros((rows.size, 2 * DIMENSION), np.float32)
            values[:, :DIMENSION] = generator.normal(0, INITIAL_SCALE, (rows.size, DIMENSION))
            batches.append((values, data))
        super().__init__(_our_step(race.config(), race.cores), batches)


class OurPipeline(Contestant):
    """The pipeline over uniform edges of as many entities and relations as FB15k-237 has."""

    def __init__(self, race: Race, mode: str):
        config = race.config(mode)
        generator = np.random.default_rng(0)
        edges = np.stack([generator.integers(bound, size=400_000) for bound in (ENTITIES, RELATIONS, ENTITIES)], 1)
        self._step = _our_step(config, race.cores)
        planner = EdgePlanner(edges, ENTITIES, RELATIONS, config)
        initial = RowInitial("normal", INITIAL_SCALE, 0, "entities")
        self._store = MemoryStore("entities", ENTITIES, RowLayout(*entity_width(config)), initial)
        self._telemetry, self._next = Telemetry(), 0
        source = LocalSource([self._store], mode)
        self._pipeline = Pipeline(
            planner, source, self._step, config.pipeline, torch.device("cpu"), self._telemetry, lambda _: None
        )

    def run(self, batches: int) -> None:
        self._next = self._pipeline.run(self._next, self._next + batches)

    def report(self) -> str:
        stages = self._telemetry.total()
        return ", ".join(f"{stage} {stages[stage] / self._next * 1e3:.2f}" for stage in stages)

    def close(self) -> None:
        self._step.close()
        self._store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Triples/s of our training, against its limits and PyTorch.")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="a", help="batch and negatives")
    parser.add_argument("--decoder", choices=("distmult", "complex"), default="distmult")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15, help="their median is reported")
    options = parser.parse_args()
    race = Race(options.decoder, options.setting, options.cores, options.in_flight)
    size, chunks, count = SETTINGS[race.setting]
    factories = {
        PRODUCTS[0]: partial(Repeated, products_by_torch, race),
        PRODUCTS[1]: partial(Repeated, products_by_numpy, race),
        "plain": partial(Repeated, plain_step, race),
        "step": partial(OurStep, race),
        "oac": partial(OurPipeline, race, "oac"),
        "sync": partial(OurPipeline, race, "sync"),
    }
    times = take_turns(factories, race.cores, max(4, 60_000 // size), options.rounds)
    print(
        f"{machine()}\nNumPy {np.__version__} with {blas.kernels()} kernels, {race.cores} cores\n"
        f"{race.decoder}, dimension {DIMENSION}, batches of "
        f"{size:,} in {chunks} chunks, {count} negatives per chunk and side, {race.in_flight} in flight"
    )
    limit = min(PRODUCTS, key=lambda name: times[name].middle)
    print(f"the limit: {limit}")
    print(f"  {'':<18}{'triples/s':>11}{'ms':>8}{'CPU ms':>8}{'x limit':>10}", end="")
    print(f"{'x torch products':>18}{'x NumPy products':>18}{'x plain':>9}")
    for name, mine in times.items():
        ratios = [mine.times_faster(times[rival]) for rival in (limit, *PRODUCTS, "plain")]
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        print(
            f"  {name:<18}{size / mine.middle:>11,.0f}{mine.middle * 1e3:>8.2f}{cpu * 1e3:>8.2f}{ratios[0]:>10.2f}",
            end="",
        )
        print(f"{ratios[1]:>18.2f}{ratios[2]:>18.2f}{ratios[3]:>9.2f}")
    print(f"  oac, ms per batch: {times['oac'].report}")


if __name__ == "__main__":
    main()
