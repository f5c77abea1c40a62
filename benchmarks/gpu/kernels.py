"""Part 9: the kernels one by one, against torch's operations and what the hardware can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.part import Part, Table
from benchmarks.gpu.place import Place
from benchmarks.gpu.steps import SIZES, SMALL, Size, _products, config_of
from benchmarks.graphs.step_speed import DIMENSION, INITIAL_SCALE, RELATIONS, draw, planned
from marius_oac.batches import EdgeBatch, SumOrder
from marius_oac.config.sections import OptimizerConfig
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute.arranged import arranged
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.summed import Parts
from marius_oac.models.link_prediction.autograd import AutogradGradient
from marius_oac.models.link_prediction.fused import FusedGradient
from marius_oac.models.link_prediction.step import relation_width
from marius_oac.pipeline.validation import replace_older_fused, replace_older_torch
from marius_oac.types import map_arrays

SECONDS = 420
TABLES = [
    Table("gradient", "Scores, loss and gradient of a batch of edges",
          f"Milliseconds per batch, dimension {DIMENSION}, both sides corrupted. `ours`: the kernels of `fused.py`. "
          "`torch`: the same computation by `autograd.py`. `products`: only the six matrix products in float32, "
          "which are a limit for DistMult and ComplEx.",
          {"decoder": "decoder", "batch": "batch", "negatives": "negatives per side", "who": "who", "median_ms": "ms",
           "gibibytes": "GiB of the GPU"}),
    Table("sums", "Sums of gradients and the row optimizer",
          f"Adagrad on rows of {DIMENSION} floats. The places of a batch refer to rows by a power law. `ours`: "
          "`update_parts`. `torch`: an embedding's gradient, then the optimizer. `copy`: a copy of as many bytes as "
          "must be read and written.",
          {"rows": "rows", "places": "places", "who": "who", "median_ms": "ms", "gigabytes_per_second": "GB/s"}),
    Table("validation", "Validation of a batch against one newer batch",
          f"Rows of {2 * DIMENSION} floats. Half of the rows are in both batches, and a tenth of those are "
          "replaced. `copy`: copies only the replaced rows.",
          {"rows": "rows", "who": "who", "median_ms": "ms"}),
    Table("upload", "One copy of a batch against one of each array",
          "Copies are from page-locked memory.",
          {"mebibytes": "MiB", "who": "who", "median_ms": "ms", "gigabytes_per_second": "GB/s"}),
]  # fmt: skip


def run(part: Part) -> None:
    place = part.place
    with choice.forced(True):
        for size in place.pick(SIZES, SMALL):
            for decoder in place.pick(("complex", "transe", "rotate"), ("complex",)):
                _gradients(part, decoder, size)
        for rows, places in place.pick(((20_000, 30_000), (100_000, 220_000), (1_000, 200_000)), ((50, 400),)):
            _sums(part, rows, places)
        for rows in place.pick((20_000, 100_000), (300,)):
            _validation(part, rows)
        for mebibytes in place.pick((4, 16, 64), (1,)):
            _upload(part, mebibytes)


def _measured(
    part: Part, table: str, where: dict[str, Any], who: dict[str, Callable[[], object]], num_bytes: int = 0
) -> None:
    for name, run in who.items():
        part.measure(table, where | {"who": name}, lambda run=run: _timed(part.place, run, num_bytes))


def _timed(place: Place, run: Callable[[], object], num_bytes: int) -> dict[str, float]:
    place.forget_peak()
    median = place.times(run)["median"]
    peak = place.peak_gibibytes()
    found = {"median_ms": 1e3 * median} | ({"gigabytes_per_second": num_bytes / median / 1e9} if num_bytes else {})
    return found | ({} if peak is None else {"gibibytes": peak})


def _gradients(part: Part, decoder: str, size: Size) -> None:
    place, config, generator = part.place, config_of(decoder, size), np.random.default_rng(0)
    rows, data = planned(draw(generator, *size))
    assert isinstance(data, EdgeBatch)

    def moved(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(place.device)

    def values(*shape: int) -> torch.Tensor:
        return moved(generator.normal(0, INITIAL_SCALE, shape).astype(np.float32))

    entities, table = values(len(rows), DIMENSION), values(RELATIONS, relation_width(config))
    batch = map_arrays(arranged(data, [rows], place.device), moved)
    fused, autograd = FusedGradient(config), AutogradGradient(config)
    who = {
        "ours": lambda: fused(entities, table, batch),
        "torch": lambda: autograd(entities, table[batch.relation_rows], batch),
        "products": _products(place, decoder, size),
    }
    if decoder != "complex":
        del who["products"]
    where = {"decoder": decoder, "batch": size.batch, "negatives": size.negatives}
    _measured(part, "gradient", where, who)


def _sums(part: Part, count: int, places: int) -> None:
    place, generator = part.place, np.random.default_rng(0)
    keys = np.sort((count * generator.random(places) ** 3).astype(np.int64))
    keys[:count] = np.arange(count)  # no row without a place
    order = generator.permutation(places)
    values = torch.randn(places, DIMENSION, device=place.device)
    picks = torch.from_numpy(keys[order]).to(place.device)
    sorted_places = torch.sort(picks, stable=True)[1]
    first = torch.searchsorted(picks[sorted_places], torch.arange(count + 1, device=place.device))
    rows = torch.ones(count, 2 * DIMENSION, device=place.device)
    optimizer, parts = RowOptimizer(OptimizerConfig(kind="adagrad")), Parts(values, SumOrder(sorted_places, first))
    num_bytes = values.nbytes + 2 * rows.nbytes
    source = torch.empty(num_bytes // 8, device=place.device)
    into = torch.empty_like(source)

    def by_torch() -> None:
        total = torch.ops.aten.embedding_dense_backward(values, picks, count, -1, False)
        optimizer.update(rows, total, 0)

    who = {
        "ours": lambda: optimizer.update_parts(rows, parts, 0),
        "torch": by_torch,
        "copy": lambda: into.copy_(source),
    }
    _measured(part, "sums", {"rows": count, "places": places}, who, num_bytes)


def _validation(part: Part, count: int) -> None:
    place, generator = part.place, np.random.default_rng(0)

    def ids() -> torch.Tensor:
        return torch.from_numpy(np.sort(generator.choice(2 * count, count, replace=False))).to(place.device)

    newer, rows = ids(), ids()
    values, newer_values = (torch.ones(count, 2 * DIMENSION, device=place.device) for _ in range(2))
    stale = torch.from_numpy(np.where(generator.random(count) < 0.1, 1, 9)).to(place.device)
    timestamps = stale.clone()
    some = torch.arange(0, count, 20, device=place.device)

    def by(replace: Callable[..., object]) -> Callable[[], None]:
        def again() -> None:
            timestamps.copy_(stale)
            replace(newer, newer_values, 5, rows, timestamps, values)

        return again

    def copied() -> None:
        values[some] = newer_values[some]

    who = {"ours": by(replace_older_fused), "torch": by(replace_older_torch), "copy": copied}
    _measured(part, "validation", {"rows": count}, who)


def _upload(part: Part, mebibytes: int) -> None:
    """Eight arrays, as a batch of edges has them: most bytes are those of rows."""
    streams, num_bytes = part.place.streams(), mebibytes << 20
    shares = (0.9, 0.01, 0.01, 0.02, 0.02, 0.02, 0.01, 0.01)
    host = [streams.staging((int(share * num_bytes),), torch.uint8) for share in shares]
    device = [streams.empty((len(each),), torch.uint8) for each in host]
    whole, there = streams.staging((num_bytes,), torch.uint8), streams.empty((num_bytes,), torch.uint8)
    streams.begin()

    def each() -> None:
        with streams.on("up"):
            for source, into in zip(host, device, strict=True):
                into.copy_(source, non_blocking=True)

    def packed() -> None:
        with streams.on("up"):
            there.copy_(whole, non_blocking=True)

    _measured(part, "upload", {"mebibytes": mebibytes}, {"one": packed, "each": each}, num_bytes)
