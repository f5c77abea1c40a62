"""What a step takes against plain PyTorch and the bare matrix products, and what binds the whole pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.graphs import skewed_edges
from benchmarks.gpu.measured import Trained
from benchmarks.gpu.part import Part, Table, once
from benchmarks.gpu.place import Place
from benchmarks.graphs.step_speed import (
    DIMENSION,
    ENTITIES,
    INITIAL_SCALE,
    LEARNING_RATE,
    RELATIONS,
    Edges,
    PlainModel,
    draw,
    planned,
)
from marius_oac.config.link_prediction import Config
from marius_oac.models.link_prediction.step import LinkPredictionStep, entity_width, relation_width
from marius_oac.types import map_arrays
from tests.graphs import workers

SECONDS = 300
TABLES = [
    Table("step", "A step, its rows on the device",
          f"Milliseconds per batch, dimension {DIMENSION}, Adagrad, both sides corrupted, {ENTITIES:,} entities. "
          "`products`: only the six matrix products in float32, which limit DistMult and ComplEx on the GPU. "
          "`plain`: nn.Embedding (sparse), autograd and torch.optim.Adagrad, everything on the GPU. `ours`: "
          "`LinkPredictionStep` on rows already gathered.",
          {"decoder": "decoder", "batch": "batch", "negatives": "negatives per side", "who": "who", "median_ms": "ms",
           "lowest_ms": "lowest", "highest_ms": "highest", "edges_per_second": "edges/s"}),
    Table("kernels", "What the device does in a step",
          "Figures of torch's profiler, per batch.",
          {"decoder": "decoder", "batch": "batch", "who": "who", "kernels": "kernels", "kernel_ms": "ms in kernels",
           "longest": "the longest"}),
    Table("pipeline", "The whole pipeline",
          "ComplEx with Adagrad, rows in host memory. Milliseconds are per batch and thread or stream. A stream is "
          "occupied from the first to the last operation of a batch on it.",
          {"nodes": "nodes", "batch": "batch", "mode": "mode", "workers": "workers a stage", "in_flight": "in flight",
           "examples_per_second": "edges/s", "busy": "compute stream busy", "binds": "what binds", "stages": "ms "
           "a batch",
           "replaced": "rows replaced a batch"}),
]  # fmt: skip


class Size(NamedTuple):
    batch: int
    chunks: int
    negatives: int


SIZES = (Size(1_000, 1, 500), Size(10_000, 10, 500), Size(50_000, 10, 1_000))
SMALL = (Size(60, 2, 20),)
DRAWN = 8
PIPELINES = (((1_000_000, SIZES[1]), (1_000_000, SIZES[2])), ((14_541, SIZES[0]), (14_541, SIZES[1])))
SETTINGS = (("oac", 4, 16), ("oac", 1, 8), ("sync", 1, 1), ("oac", 8, 16))
"""Mode, workers of each stage, batches in flight."""


def run(part: Part) -> None:
    place = part.place
    sizes, decoders = place.pick(SIZES, SMALL), place.pick(("complex", "distmult", "transe", "rotate"), ("complex",))
    for decoder, size in ((decoder, size) for decoder in decoders[:1] for size in sizes):
        _step(part, decoder, size)
    for graphs in place.pick(PIPELINES, (((500, SMALL[0]),),)):
        _pipelines(part, graphs)
    for decoder, size in ((decoder, size) for decoder in decoders[1:] for size in sizes):
        _step(part, decoder, size)


def config_of(decoder: str, size: Size, *overrides: str) -> Config:
    tree = {
        "data": {"path": "none"},
        "model": {"decoder": decoder, "dimension": DIMENSION},
        "training": {"batch_size": size.batch, "negatives": {"count": size.negatives, "chunks": size.chunks}},
    }
    return Config.build(tree, overrides)


def _step(part: Part, decoder: str, size: Size) -> None:
    who = {"ours": _ours, "plain": _plain, "products": _products}
    if decoder == "rotate":  # a plain RotatE would keep every difference: gigabytes even of small batches
        del who["plain"]
    if decoder in ("transe", "rotate"):
        del who["products"]
    for name, make in who.items():
        where = {"decoder": decoder, "batch": size.batch, "negatives": size.negatives, "who": name}
        part.measure("step", where, lambda make=make: _timed(part.place, make(part.place, decoder, size), size))
    for name in [each for each in who if each != "products"]:
        where = {"decoder": decoder, "batch": size.batch, "who": name}
        make = who[name]
        part.measure("kernels", where, lambda make=make: _profiled(part.place, make(part.place, decoder, size)))


def _timed(place: Place, run: Callable[[], object], size: Size) -> dict[str, float]:
    found = place.times(run)
    return {f"{key}_ms": 1e3 * value for key, value in found.items()} | {
        "edges_per_second": size.batch / found["median"]
    }


def _profiled(place: Place, run: Callable[[], object], batches: int = 5) -> dict[str, Any]:
    run()
    place.wait()
    kind = ProfilerActivity.CUDA if place.on_gpu else ProfilerActivity.CPU
    with profile(activities=[kind]) as seen:
        for _ in range(batches):
            run()
        place.wait()
    microseconds = {each.key: (each.self_device_time_total if place.on_gpu else each.self_cpu_time_total, each.count)
                    for each in seen.key_averages()}  # fmt: skip
    longest = max(microseconds, key=lambda key: microseconds[key][0])
    return {
        "kernels": sum(count for _, count in microseconds.values()) / batches,
        "kernel_ms": sum(time for time, _ in microseconds.values()) / batches / 1e3,
        "longest": f"{longest[:60]} {microseconds[longest][0] / batches / 1e3:.3f} ms",
    }


def _drawn(size: Size) -> list[Edges]:
    generator = np.random.default_rng(0)
    return [draw(generator, *size) for _ in range(DRAWN)]


def _in_turn(run: Callable[[int], object]) -> Callable[[], object]:
    """Calls `run` with the number of the next drawn batch."""
    state = {"next": 0}

    def following() -> None:
        run(state["next"] % DRAWN)
        state["next"] += 1

    return following


def _ours(place: Place, decoder: str, size: Size) -> Callable[[], object]:
    config, generator = config_of(decoder, size), np.random.default_rng(1)
    relations = generator.normal(0, INITIAL_SCALE, (RELATIONS, relation_width(config))).astype(np.float32)
    step = LinkPredictionStep(config, RELATIONS, place.device, 1, relations)
    batches, state = [], {"timestamp": 0}
    for edges in _drawn(size):
        rows, data = planned(edges)
        values = np.zeros((rows.size, sum(entity_width(config))), np.float32)
        values[:, :DIMENSION] = generator.normal(0, INITIAL_SCALE, (rows.size, DIMENSION))
        moved = map_arrays(data, lambda array: torch.from_numpy(array).to(place.device))
        batches.append((torch.from_numpy(values).to(place.device), moved))

    def run(number: int) -> None:
        values, data = batches[number]
        step.compute([values], data, state["timestamp"])
        state["timestamp"] += 1

    return _in_turn(run)


def _plain(place: Place, decoder: str, size: Size) -> Callable[[], object]:
    torch.sparse.check_sparse_tensor_invariants.disable()
    torch.manual_seed(0)
    model = PlainModel(decoder).to(place.device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    batches = [
        [torch.from_numpy(ids).to(place.device) for ids in (each.heads, each.relations, each.tails, each.negatives)]
        for each in _drawn(size)
    ]

    def run(number: int) -> None:
        optimizer.zero_grad()
        model(*batches[number]).backward()
        optimizer.step()

    return _in_turn(run)


def _products(place: Place, decoder: str, size: Size) -> Callable[[], object]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(2 * size.chunks, *shape, device=place.device)

    queries, candidates = random(size.batch // size.chunks, DIMENSION), random(size.negatives, DIMENSION)
    scores = random(size.batch // size.chunks, size.negatives)
    query_gradients, candidate_gradients = torch.empty_like(queries), torch.empty_like(candidates)

    def run() -> None:
        torch.bmm(queries, candidates.transpose(1, 2), out=scores)
        torch.bmm(scores, candidates, out=query_gradients)
        torch.bmm(scores.transpose(1, 2), queries, out=candidate_gradients)

    return run


def _pipelines(part: Part, graphs: Sequence[tuple[int, Size]]) -> None:
    """Of graphs whose tables are in memory at once."""
    place = part.place

    def trained(nodes: int, size: Size) -> Trained:
        edges = skewed_edges(nodes, RELATIONS, place.pick(2_000_000, 5_000))
        return Trained(place, config_of("complex", size), edges, nodes, RELATIONS)

    with ExitStack() as stack:
        tables = [stack.enter_context(once(functools.partial(trained, *graph))) for graph in graphs]
        for mode, count, in_flight in place.pick(SETTINGS, SETTINGS[:3]):
            overrides = (f"pipeline.mode={mode}", f"pipeline.in_flight={in_flight}", *workers(count))
            for (nodes, size), table in zip(graphs, tables, strict=True):
                where = {"nodes": nodes, "batch": size.batch, "mode": mode, "workers": count, "in_flight": in_flight}
                run = lambda table=table, more=overrides: table().measured(place.pick(4.0, 0.1), *more)  # noqa: E731
                part.measure("pipeline", where, run, needs=place.pick(5, 0))
