"""The kernels one by one, against torch's operations and what the hardware can do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from marius_oac.models.link_prediction import fused
from marius_oac.models.link_prediction.autograd import AutogradGradient
from marius_oac.models.link_prediction.step import relation_width
from marius_oac.pipeline.validation import replace_older_fused, replace_older_torch
from marius_oac.types import map_arrays

SECONDS = 180
TABLES = [
    Table("gradient", "Scores, loss and gradient of a batch of edges",
          f"Milliseconds per batch, dimension {DIMENSION}, both sides corrupted. `ours`: the kernels of `fused.py`. "
          "`torch`: the same computation by `autograd.py`. `products`: only the six matrix products in float32, "
          "which are a limit for DistMult and ComplEx. A tile is queries x candidates of a program, and its warps.",
          {"decoder": "decoder", "batch": "batch", "negatives": "negatives per side", "who": "who",
           "precision": "precision", "tile": "tile", "median_ms": "ms", "gibibytes": "GiB of the GPU"}),
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


PRECISIONS = ("float32", "tf32", "bfloat16")
TILES = ((64, 64, 4), (64, 32, 4), (64, 32, 8), (32, 32, 4), (64, 64, 8), (128, 64, 8), (128, 32, 8))
"""Beside that of the package: queries, candidates, warps."""
REHEARSED = TILES[:1]


def run(part: Part) -> None:
    place = part.place
    sizes = place.pick((SIZES[1], SIZES[2], SIZES[0]), SMALL)
    with choice.forced(True):
        for size in sizes:
            _gradients(part, "complex", size)
        _sums(part, *place.pick((100_000, 220_000), (50, 400)))
        _validation(part, place.pick(100_000, 300))
        for size in sizes[:2]:
            _tiles(part, size)
        for decoder in ("transe", "rotate"):
            _gradients(part, decoder, sizes[0])
        for rows, places in place.pick(((20_000, 30_000), (1_000, 200_000)), ()):
            _sums(part, rows, places)
        for mebibytes in place.pick((4, 16, 64), (1,)):
            _upload(part, mebibytes)


def _measured(
    part: Part, table: str, where: dict[str, Any], make: Callable[[], dict[str, Callable[[], object]]],
    who: Sequence[str], num_bytes: int = 0,
) -> None:  # fmt: skip
    """Measures those of `who`, whom `make` makes when the first one is measured."""
    made = functools.cache(make)
    for name in who:
        part.measure(table, where | {"who": name}, lambda name=name: _timed(part.place, made()[name], num_bytes))


def _timed(place: Place, run: Callable[[], object], num_bytes: int = 0) -> dict[str, float]:
    place.forget_peak()
    median = place.times(run, least=0.05)["median"]
    peak = place.peak_gibibytes()
    found = {"median_ms": 1e3 * median} | ({"gigabytes_per_second": num_bytes / median / 1e9} if num_bytes else {})
    return found | ({} if peak is None else {"gibibytes": peak})


class Edges:
    """Edges of a drawn batch on the device, with the rows that they are of; `computed` by a gradient."""

    def __init__(self, place: Place, decoder: str, size: Size):
        generator, config = np.random.default_rng(0), config_of(decoder, size)
        rows, data = planned(draw(generator, *size))
        assert isinstance(data, EdgeBatch)

        def moved(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(place.device)

        def values(*shape: int) -> torch.Tensor:
            return moved(generator.normal(0, INITIAL_SCALE, shape).astype(np.float32))

        self._decoder, self._size = decoder, size
        self._entities, self._table = values(len(rows), DIMENSION), values(RELATIONS, relation_width(config))
        self._batch = map_arrays(arranged(data, [rows], place.device), moved)

    def fused(self, precision: str, tile: Sequence[int] | None = None) -> Callable[[], object]:
        """By the kernels, in tiles of queries, candidates and warps other than the package's if `tile` is given."""
        with tiled(tile):
            gradient = fused.FusedGradient(config_of(self._decoder, self._size, f"compute.precision={precision}"))
        return lambda: gradient(self._entities, self._table, self._batch)

    def by_torch(self) -> Callable[[], object]:
        gradient = AutogradGradient(config_of(self._decoder, self._size))
        return lambda: gradient(self._entities, self._table[self._batch.relation_rows], self._batch)


@contextmanager
def tiled(tile: Sequence[int] | None) -> Iterator[None]:
    """Gradients that are made within it take this tile instead of the package's."""
    own = fused.tile_of

    def given(similarity: int, dimension: int) -> fused.Tile | None:
        found = own(similarity, dimension)
        return found and fused.Tile(tile[0], tile[1], found.columns, tile[2])

    fused.tile_of = given if tile else own
    try:
        yield
    finally:
        fused.tile_of = own


def _gradients(part: Part, decoder: str, size: Size) -> None:
    """In the package's tile: our precisions, torch and the bare products."""
    where = {"decoder": decoder, "batch": size.batch, "negatives": size.negatives}
    edges = functools.cache(lambda: Edges(part.place, decoder, size))
    tile = told_tile(fused.FusedGradient(config_of(decoder, size))._tile)
    for precision in PRECISIONS if decoder == "complex" else PRECISIONS[:1]:  # distances are no products
        own = where | {"who": "ours", "precision": precision, "tile": tile}
        part.measure("gradient", own, lambda of=precision: _timed(part.place, edges().fused(of)))
    others = {"torch": lambda: edges().by_torch(), "products": lambda: _products(part.place, decoder, size)}
    for who in ("torch", "products") if decoder == "complex" else ("torch",):
        part.measure("gradient", where | {"who": who}, lambda make=others[who]: _timed(part.place, make()))


def _tiles(part: Part, size: Size) -> None:
    """The kernels in other tiles, in all precisions."""
    edges = functools.cache(lambda: Edges(part.place, "complex", size))
    for tile in part.place.pick(TILES, REHEARSED):
        for precision in PRECISIONS:
            where = {"decoder": "complex", "batch": size.batch, "negatives": size.negatives, "who": "ours",
                     "precision": precision, "tile": told_tile(tile)}  # fmt: skip
            run = lambda of=precision, tile=tile: _timed(part.place, edges().fused(of, tile))  # noqa: E731
            part.measure("gradient", where, run)


def told_tile(tile: Sequence[int]) -> str:
    return f"{tile[0]} x {tile[1]}, {tile[-1]} warps"


def _sums(part: Part, count: int, places: int) -> None:
    place = part.place
    rows_bytes, parts_bytes = count * 2 * DIMENSION * 4, places * DIMENSION * 4

    def make() -> dict[str, Callable[[], object]]:
        generator = np.random.default_rng(0)
        keys = np.sort((count * generator.random(places) ** 3).astype(np.int64))
        keys[:count] = np.arange(count)  # no row without a place
        order = generator.permutation(places)
        values = torch.randn(places, DIMENSION, device=place.device)
        picks = torch.from_numpy(keys[order]).to(place.device)
        sorted_places = torch.sort(picks, stable=True)[1]
        first = torch.searchsorted(picks[sorted_places], torch.arange(count + 1, device=place.device))
        rows = torch.ones(count, 2 * DIMENSION, device=place.device)
        optimizer, parts = RowOptimizer(OptimizerConfig(kind="adagrad")), Parts(values, SumOrder(sorted_places, first))
        source = torch.empty((parts_bytes + 2 * rows_bytes) // 8, device=place.device)
        into = torch.empty_like(source)

        def by_torch() -> None:
            total = torch.ops.aten.embedding_dense_backward(values, picks, count, -1, False)
            optimizer.update(rows, total, 0)

        return {
            "ours": lambda: optimizer.update_parts(rows, parts, 0),
            "torch": by_torch,
            "copy": lambda: into.copy_(source),
        }

    num_bytes = parts_bytes + 2 * rows_bytes
    _measured(part, "sums", {"rows": count, "places": places}, make, ("ours", "torch", "copy"), num_bytes)


def _validation(part: Part, count: int) -> None:
    place = part.place

    def make() -> dict[str, Callable[[], object]]:
        generator = np.random.default_rng(0)

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

        return {"ours": by(replace_older_fused), "torch": by(replace_older_torch), "copy": copied}

    _measured(part, "validation", {"rows": count}, make, ("ours", "torch", "copy"))


def _upload(part: Part, mebibytes: int) -> None:
    """Eight arrays, as a batch of edges has them: most bytes are those of rows."""
    num_bytes, shares = mebibytes << 20, (0.9, 0.01, 0.01, 0.02, 0.02, 0.02, 0.01, 0.01)

    def make() -> dict[str, Callable[[], object]]:
        streams = part.place.streams()
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

        return {"one": packed, "each": each}

    _measured(part, "upload", {"mebibytes": mebibytes}, make, ("one", "each"), num_bytes)
