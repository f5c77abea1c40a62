"""Loss and gradient of a batch of edges in the kernels of `kernels.gpu`, for decoders and losses of the package.

The formula is that of `autograd`. Scores of a query with its candidates are never in memory; what is, beside a batch,
are the queries, the gradients of each place where a row occurs, and some numbers a query.

Guarantees: nothing waits for the device; the same tensors give the same bits on the same device, as every sum has one
order, by shapes and indices alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marius_oac.batches import EdgeBatch, EdgeOrder
from marius_oac.config.link_prediction import Config
from marius_oac.kernels.cpu import decoders as codes
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute.summed import BLOCK, Parts, power, sorted_there
from marius_oac.models.compute.update_rules import make_update_rule
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.handwritten import _form_of, is_handwritten
from marius_oac.models.link_prediction.losses import make_loss
from marius_oac.types import present

_PRECISIONS = {"float32": "ieee", "tf32": "tf32", "bfloat16": "bfloat16"}
"""Of products, as the kernels name them, by `compute.precision`."""
_FEWEST_PROGRAMS = 264
"""Programs among which the queries of a chunk are split for the gradient of its candidates: two for each multiprocessor
of a Hopper. The same on every device, as the number is part of the order of sums."""
_FEWEST_TILES = 4
"""Of queries, in a split."""


class Tile(NamedTuple):
    """Queries and candidates that a program has at a time, columns of their vectors, and its warps."""

    queries: int
    candidates: int
    columns: int
    warps: int


_INNER = {16: (64, 64, 4), 32: (64, 64, 8), 64: (64, 32, 8), 128: (32, 16, 8), 256: (16, 16, 8), 512: (16, 16, 16)}
"""Tiles of products by their columns: the largest that need no stack on a Hopper, by the compiler's word."""
_PAIRS = 8192
"""Floats of the differences that a program has at a time, for distances; at most 1024 columns, likewise."""


def tile_of(similarity: int, dimension: int) -> Tile | None:
    """The tile of a similarity; None: the vectors are too long for the kernels."""
    two = similarity == codes.MODULI
    columns = power(dimension // 2 if two else dimension, 16)
    if similarity == codes.INNER:
        if columns not in _INNER:
            return None
        queries, candidates, warps = _INNER[columns]
        return Tile(queries, candidates, columns, warps)
    pairs = _PAIRS // columns // (1 + two)
    if pairs < 4 or columns > 1024:
        return None
    queries = power(int(pairs**0.5))
    return Tile(queries, pairs // queries, columns, 8)


def splits_of(tile: Tile, groups: int, candidates: int, queries: int) -> int:
    """Among how many programs the queries of a chunk are split, for each tile of its candidates."""
    programs = groups * -(-candidates // tile.candidates)
    return max(1, min(-(-queries // (tile.queries * _FEWEST_TILES)), -(-_FEWEST_PROGRAMS // programs)))


def is_fused(config: Config, device: torch.device) -> bool:
    """Whether a device's steps of this configuration are computed here."""
    if not (choice.chosen(device) and is_handwritten(config)):
        return False
    similarity = present(make_decoder(config.model).compiled).similarity
    return tile_of(similarity, config.model.dimension) is not None


def fused_bytes(config: Config, data: EdgeBatch[Any], rows: int) -> int:
    """What a step holds at most beside a batch of `rows` rows, for the memory plan."""
    model, decoder = config.model, make_decoder(config.model)
    edges, sides, dimension = len(data.heads), 1 if model.reciprocal else 2, model.dimension
    drawn, width = rows if data.negatives is None else data.negatives.size, decoder.relation_width(dimension)
    tile = present(tile_of(present(decoder.compiled).similarity, dimension))
    splits = splits_of(tile, *_groups(data, rows, sides))
    numbers = 5 * _aligned(sides * edges)
    queries, parts = sides * edges * dimension + numbers, (2 * edges + drawn) * dimension
    beside = [splits * drawn * dimension * (splits > 1), edges * width]
    after = parts // BLOCK + edges * width
    rule = make_update_rule(config.training.optimizer)
    if rule.code is None:
        after += (1 + (rule.state_width(dimension) > 0)) * rows * dimension
    return 4 * (parts + max(queries + max(beside), after + numbers))


def _aligned(floats: int) -> int:
    """So many that what lies behind them begins where Triton expects a tensor (`kernels.gpu.jit`)."""
    return -(-floats // 4) * 4


def _groups(data: EdgeBatch[Any], rows: int, sides: int) -> tuple[int, int, int]:
    """Of the gradient by candidates: groups of them, candidates in each, and the most queries of a group."""
    if data.negatives is None:
        return 1, rows, sides * len(data.heads)
    offsets = data.chunk_offsets
    longest = max(end - begin for begin, end in zip(offsets[:-1], offsets[1:], strict=True))
    return sides * (len(offsets) - 1), data.negatives.shape[2], longest


@dataclass(frozen=True)
class Found:
    """Of a batch.

    Attributes:
        losses: float32 [S, B], whose mean is the loss, penalties in it.
        entities: the gradients of the rows by place.
        relations: those of the batch's relations; None for Dot.
    """

    losses: Tensor
    entities: Parts
    relations: Parts | None


class FusedGradient:
    """Computes losses and gradients of batches; for configurations that `is_fused` accepts."""

    def __init__(self, config: Config) -> None:
        self._config, self._decoder = config, make_decoder(config.model)
        self._loss = present(make_loss(config.training.loss).code)
        self._form = _form_of(config, self._decoder)
        self._sides = 1 if config.model.reciprocal else 2
        self._precision = _PRECISIONS[config.compute.precision]
        self._tile = present(tile_of(self._form.similarity, config.model.dimension))

    def __call__(self, rows: Tensor, table: Tensor | None, data: EdgeBatch[Tensor]) -> Found:
        """Losses and gradients of a batch.

        Args:
            rows: float32 [n, D + state].
            table: float32 [R, Dr + state], all relations; None for Dot.
            data: the batch, its tensors on the device of the rows.
        """
        # Imported here: it needs Triton.
        from marius_oac.kernels.gpu import edges as kernels
        from marius_oac.kernels.gpu.jit import launch

        config, count, dimension = self._config, len(data.heads), self._config.model.dimension
        order = data.order or order_of(data, len(rows), self._sides)
        empty, places = rows.new_empty, len(order.rows.places)
        queries = empty((self._sides, count, dimension))
        numbers = empty((5, _aligned(self._sides * count)))[:, : self._sides * count].view(5, self._sides, count)
        positives, by_positives, losses = numbers[0], numbers[1], numbers[2]
        parts = empty((places, dimension))
        width = self._decoder.relation_width(dimension)
        table = rows if table is None else table
        relations = present(data.relations) if width else data.heads
        picks = present(data.relation_rows) if width else data.heads
        given = (rows, rows.stride(0), table, table.stride(0), data.heads, data.tails, relations, picks)
        form = dict(FORM=self._form.query, SIMILARITY=self._form.similarity, PHASES=self._form.phases,
                    SIDES=self._sides, DIMENSION=dimension, **self._edge_tile)  # fmt: skip
        tiles = -(-count // self._edge_tile["EDGES"])
        launch(kernels.queries, (tiles, self._sides), *given, queries, positives, count, **form)
        self._scores(rows, queries, data, order, numbers, parts)
        relation_parts = empty((count, width))
        weight = config.training.regularization.weight / count
        launch(
            kernels.end_gradients, (tiles,), *given, queries, by_positives, parts, relation_parts, losses, count,
            weight * count * self._sides, weight, PENALTY=self._form.penalty, **form,
        )  # fmt: skip
        related = Parts(relation_parts, present(order.relations)) if width else None
        return Found(losses, Parts(parts, order.rows), related)

    @property
    def _edge_tile(self) -> dict[str, int]:
        two = self._form.query == codes.COMPLEX_PRODUCT
        columns = power(self._config.model.dimension // (1 + two), 16)
        return {"COLUMNS": columns, "EDGES": max(1, 1024 // columns)}

    def _scores(
        self,
        rows: Tensor,
        queries: Tensor,
        data: EdgeBatch[Tensor],
        order: EdgeOrder[Tensor],
        numbers: Tensor,
        parts: Tensor,
    ) -> None:
        """Fills in losses and gradients by queries and candidates; `numbers` and `parts` are those of `__call__`."""
        from marius_oac.kernels.gpu import scores as kernels
        from marius_oac.kernels.gpu.jit import launch

        count, dimension, tile, loss = len(data.heads), queries.shape[2], self._tile, self._config.training.loss
        positives, by_positives, losses, firsts, seconds = numbers
        groups, candidates, most = _groups(data, len(rows), self._sides)
        chunks, longest, negatives, bounds, divisor = 1, count, data.heads, data.heads, candidates - 1
        if data.negatives is not None:
            chunks, longest, negatives = groups // self._sides, most, data.negatives
            bounds, divisor = present(order.chunk_bounds), candidates
        factors = (1 / (self._sides * count), 1 / max(divisor, 1), loss.margin, loss.temperature)
        constants: dict[str, Any] = dict(LOSS=self._loss, SIMILARITY=self._form.similarity, ALL=data.negatives is None,
                         SIDES=self._sides, PRECISION=self._precision, DIMENSION=dimension, COLUMNS=tile.columns,
                         QUERIES=tile.queries, CANDIDATES=tile.candidates, warps=tile.warps)  # fmt: skip
        ends = (data.heads, data.tails, negatives, bounds)
        tiles = -(-longest // tile.queries)
        launch(
            kernels.query_gradients, (tiles, chunks, self._sides), rows, rows.stride(0), queries, positives, *ends,
            parts, by_positives, losses, firsts, seconds, count, candidates, tiles, *factors, **constants,
        )  # fmt: skip
        splits, drawn = splits_of(tile, groups, candidates, most), parts[2 * count :]
        into, behind = (parts, 2 * count) if splits == 1 else (rows.new_empty((splits, *drawn.shape)), 0)
        launch(
            kernels.candidate_gradients, (-(-candidates // tile.candidates), groups, splits), rows, rows.stride(0),
            queries, *ends, firsts, seconds, into, behind, count, candidates, chunks, splits, *factors, **constants,
        )  # fmt: skip
        if splits > 1:
            torch.sum(into, 0, out=drawn)


def order_of(data: EdgeBatch[Tensor], num_rows: int, sides: int) -> EdgeOrder[Tensor]:
    """The order of a batch that came without one, sorted on the device; see `models.compute.arranged`."""
    picks = [data.heads, data.tails]
    if data.negatives is None:
        picks.append(torch.arange(num_rows, device=data.heads.device))
    else:
        picks.append(data.negatives.flatten())
    relations = None
    if data.relations is not None:
        relations = sorted_there(data.relations, len(present(data.relation_rows)))
    return EdgeOrder(sorted_there(torch.cat(picks), num_rows), relations, _bounds(data))


def _bounds(data: EdgeBatch[Tensor]) -> Tensor | None:
    """The chunks' bounds, without a copy from the host, for which it would wait."""
    offsets: Any = data.chunk_offsets
    if data.negatives is None:
        return None
    bounds = torch.empty(len(offsets), dtype=torch.int64, device=data.heads.device)
    for number, offset in enumerate(offsets):
        bounds[number] = offset
    return bounds
