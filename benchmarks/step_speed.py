"""Speed of a training step of link prediction: ours, plain PyTorch and the bare matrix products, in triples/s.

    python -m benchmarks.step_speed                                    # batch 1000, 500 negatives, DistMult, one core
    python -m benchmarks.step_speed --threads 2 --setting b --decoder complex

Setting a: batches of 1000 with 500 negatives per side; b: batches of 10000 in 10 chunks with 100 negatives each. Both
sides are corrupted, 14,541 entities, 237 relations, dimension 100, softmax, element-wise Adagrad, uniform edges.
"products" are the six matrix products of a batch alone (by torch and by NumPy, whose BLAS ours uses), a limit of the
machine. "plain" is what a user writes: nn.Embedding(sparse=True), autograd, torch.optim.Adagrad. "step" is our
`LinkPredictionStep` on planned batches, its rows already gathered.

The contestants take turns of five batches, and the ratios are medians of the ratios within a turn, so a busy machine
slows all alike. Times are per batch. CPU is the processor time of all threads, which other processes disturb less.
"""

import argparse
import datetime
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import nn

from marius_oac.config import Config
from marius_oac.models.link_prediction import LinkPredictionStep, relation_width

ENTITIES, RELATIONS, DIMENSION = 14_541, 237, 100
SETTINGS = {"a": (1_000, 1, 500), "b": (10_000, 10, 100)}
LEARNING_RATE, INITIAL_SCALE = 0.1, 1e-3
TURN = 5  # batches


@dataclass
class Contestant:
    name: str
    run: Callable[[int], object]  # computes batch number i
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


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


def planned(edges: Edges) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The batch's unique entities, and its arrays in local indices."""
    size, chunks = edges.heads.size, edges.negatives.shape[1]
    rows, local = np.unique(
        np.concatenate((edges.heads, edges.tails, edges.negatives.reshape(-1))), return_inverse=True
    )
    relation_rows, relations = np.unique(edges.relations, return_inverse=True)
    return rows, {
        "heads": local[:size],
        "tails": local[size : 2 * size],
        "negatives": local[2 * size :].reshape(edges.negatives.shape),
        "relations": relations,
        "relation_rows": relation_rows,
        "chunk_offsets": np.arange(chunks + 1) * size // chunks,
    }


class PlainModel(nn.Module):
    """DistMult or ComplEx, as one would write it for PyTorch."""

    def __init__(self, decoder: str) -> None:
        super().__init__()
        self.is_complex = decoder == "complex"
        self.entities = nn.Embedding(ENTITIES, DIMENSION, sparse=True)
        self.relations = nn.Embedding(RELATIONS, DIMENSION, sparse=True)
        for table in (self.entities, self.relations):
            nn.init.normal_(table.weight, std=INITIAL_SCALE)

    def product(self, x: torch.Tensor, y: torch.Tensor, conjugate: bool) -> torch.Tensor:
        if not self.is_complex:
            return x * y
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
            query = self.product(anchor, r, conjugate=side == 0)
            positive = (query * target).sum(-1, keepdim=True)
            scores = torch.bmm(query.view(chunks, -1, DIMENSION), candidates[side].transpose(1, 2)).flatten(0, 1)
            logits = torch.cat((positive, scores), 1)
            losses.append(nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)))
        return (losses[0] + losses[1]) / 2


def plain_step(decoder: str, batches: list[Edges]) -> Callable[[int], object]:
    model = PlainModel(decoder)
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


def our_step(decoder: str, setting: str, threads: int, batches: list[Edges]) -> tuple[LinkPredictionStep, Callable]:
    size, chunks, count = SETTINGS[setting]
    config = Config.build(
        {
            "data": {"path": "none"},
            "model": {"decoder": decoder, "dimension": DIMENSION},
            "training": {"batch_size": size, "negatives": {"count": count, "chunks": chunks}},
        }
    )
    generator = np.random.default_rng(1)
    relations = generator.normal(0, INITIAL_SCALE, (RELATIONS, relation_width(config))).astype(np.float32)
    step = LinkPredictionStep(config, RELATIONS, torch.device("cpu"), threads, relations)
    plans = []
    for batch in batches:
        rows, arrays = planned(batch)
        values = np.zeros((rows.size, 2 * DIMENSION), np.float32)
        values[:, :DIMENSION] = generator.normal(0, INITIAL_SCALE, (rows.size, DIMENSION))
        plans.append((values, arrays))
    clock = iter(range(1 << 62))
    return step, lambda i: step.compute([plans[i][0]], plans[i][1], next(clock))


def products_by_torch(setting: str) -> Callable[[int], object]:
    size, chunks, count = SETTINGS[setting]
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


def products_by_numpy(setting: str) -> Callable[[int], object]:
    size, chunks, count = SETTINGS[setting]
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


def measure(contestants: list[Contestant], batches: int, repeats: int) -> None:
    """Adds `repeats` times per batch to every contestant, after a turn that does not count."""
    for turn in range(repeats + 1):
        for contestant in contestants:
            cpu, wall = time.process_time(), time.perf_counter()
            for i in range(TURN):
                contestant.run((TURN * turn + i) % batches)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn:
                contestant.seconds.append(wall / TURN)
                contestant.cpu_seconds.append(cpu / TURN)


def report(contestants: list[Contestant], size: int) -> None:
    print(f"  {'':<18}{'triples/s':>11}{'ms':>8}{'lowest':>8}{'CPU ms':>8}", end="")
    print(f"{'x products':>12}{'x plain':>9}{'CPU x plain':>13}")
    by_name = {contestant.name: contestant for contestant in contestants}
    for each in contestants:
        ratios = [
            statistics.median(theirs / ours for ours, theirs in zip(mine, other, strict=True))
            for mine, other in (
                (each.seconds, by_name["products, torch"].seconds),
                (each.seconds, by_name["plain"].seconds),
                (each.cpu_seconds, by_name["plain"].cpu_seconds),
            )
        ]
        middle = statistics.median(each.seconds)
        print(
            f"  {each.name:<18}{size / middle:>11,.0f}{middle * 1e3:>8.2f}{min(each.seconds) * 1e3:>8.2f}"
            f"{statistics.median(each.cpu_seconds) * 1e3:>8.2f}{ratios[0]:>12.2f}{ratios[1]:>9.2f}{ratios[2]:>13.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Triples/s of one training step, against its limits and PyTorch.")
    parser.add_argument("--threads", type=int, default=1, help="threads that compute")
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="a", help="batch and negatives")
    parser.add_argument("--decoder", choices=("distmult", "complex"), default="distmult")
    parser.add_argument("--repeats", type=int, default=40, help="turns; their median is reported")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()
    size, chunks, count = SETTINGS[options.setting]
    generator = np.random.default_rng(0)
    batches = [draw(generator, size, chunks, count) for _ in range(20)]
    step, ours = our_step(options.decoder, options.setting, options.threads, batches)
    contestants = [
        Contestant("products, torch", products_by_torch(options.setting)),
        Contestant("products, NumPy", products_by_numpy(options.setting)),
        Contestant("plain", plain_step(options.decoder, batches)),
        Contestant("step", ours),
    ]
    print(
        f"{datetime.date.today()}  {platform.processor() or platform.machine()}  torch {torch.__version__}  "
        f"NumPy {np.__version__}  {options.threads} threads\n{options.decoder}, dimension {DIMENSION}, batches of "
        f"{size:,} in {chunks} chunks, {count} negatives per chunk and side"
    )
    with ThreadpoolController().limit(limits=options.threads, user_api="blas"):
        try:
            measure(contestants, len(batches), options.repeats)
        finally:
            step.close()
    report(contestants, size)


if __name__ == "__main__":
    main()
