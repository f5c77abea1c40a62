"""Distances between many queries and many candidates in torch, with a gradient that needs memory for only one tile.

The difference of a query and a candidate has D floats, their distance is one. The differences of all pairs, with what
autograd keeps for them, would take some hundred times the memory of a batch's scores. Here one tile of differences is
computed at a time, and again in the backward pass. Tiles depend only on the shapes, and sums over them have a fixed
order.

| kind | distance | its derivative with respect to the difference d |
|---|---|---|
| l1 | sum over i of abs(d_i) | sign(d_i) |
| l2 | sqrt(sum over i of d_i^2) | d_i / distance |
| moduli | sum over pairs (re, im) of d of sqrt(re^2 + im^2) | (re, im) / the pair's modulus |

If a distance or modulus is 0, the derivative is taken as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from marius_oac.errors import ConfigError

Kind = Literal["l1", "l2", "moduli"]
Score = Callable[[Tensor, Tensor], Tensor]

TILE_BYTES = 64 << 20
"""The largest size of a tile's differences, unless a single one is larger."""
CPU_TILE_BYTES = 16 << 20
"""The same for an unknown function on the CPU, where memory of larger tiles would be mapped anew each time."""
TILES = {"l1": 1.0, "l2": 1.03, "moduli": 1.65, None: 4.0}
"""The peak memory in tiles: the differences, and what is computed from them. None: an unknown function, as if it kept
four floats for each."""


def tile_bytes(kind: Kind | None, pairs: int, dimension: int) -> int:
    """What the differences of so many queries and candidates, or of a tile of them, take with what is made of them."""
    return int(TILES[kind] * min(TILE_BYTES, 4 * pairs * dimension))


def distances(kind: Kind, queries: Tensor, candidates: Tensor) -> Tensor:
    """The distances [..., B, K] between queries [..., B, D] and candidates [..., K, D]; differentiable once."""
    return _Distances.apply(kind, queries, candidates)


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: Kind, queries: Tensor, candidates: Tensor) -> Tensor:
        ctx.kind = kind
        ctx.save_for_backward(queries, candidates)
        found = queries.new_empty((*queries.shape[:-1], candidates.shape[-2]))
        for rows, columns in _tiles(queries, candidates):
            found[..., rows, columns] = _measured(kind, _differences(queries, candidates, rows, columns))
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        queries, candidates = ctx.saved_tensors
        by_queries, by_candidates = torch.zeros_like(queries), torch.zeros_like(candidates)
        for rows, columns in _tiles(queries, candidates):
            by_difference = _derivative(ctx.kind, _differences(queries, candidates, rows, columns))
            by_difference *= gradient[..., rows, columns].unsqueeze(-1)
            by_queries[..., rows, :].add_(by_difference.sum(-2))  # `+=` would also copy the view onto itself
            by_candidates[..., columns, :].sub_(by_difference.sum(-3))
            del by_difference  # before the next one is computed
        return None, by_queries, by_candidates


def scored_by_tiles(score: Score, queries: Tensor, candidates: Tensor) -> Tensor:
    """Scores [..., B, K] by a differentiable function of queries [..., B, D] and candidates [..., K, D], tile by tile;
    differentiable once. Raises ConfigError if the function returns another shape."""
    return _Scores.apply(score, queries, candidates)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: Score, queries: Tensor, candidates: Tensor) -> Tensor:
        ctx.score = score
        ctx.save_for_backward(queries, candidates)
        found = queries.new_empty((*queries.shape[:-1], candidates.shape[-2]))
        for rows, columns in _tiles(queries, candidates, _largest_tile(queries)):
            tile = score(queries[..., rows, :], candidates[..., columns, :])
            into = found[..., rows, columns]
            if tile.shape != into.shape:  # it could be broadcast
                raise ConfigError(f"score returns {list(tile.shape)}, not {list(into.shape)}", "model.decoder")
            into.copy_(tile)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        queries, candidates = ctx.saved_tensors
        by_queries, by_candidates = torch.zeros_like(queries), torch.zeros_like(candidates)
        for rows, columns in _tiles(queries, candidates, _largest_tile(queries)):
            leaves = [each.detach().requires_grad_() for each in (queries[..., rows, :], candidates[..., columns, :])]
            with torch.enable_grad():
                scores = ctx.score(*leaves)
            by_tile = torch.autograd.grad(scores, leaves, gradient[..., rows, columns])
            by_queries[..., rows, :].add_(by_tile[0])
            by_candidates[..., columns, :].add_(by_tile[1])
        return None, by_queries, by_candidates


def _largest_tile(queries: Tensor) -> int:
    return CPU_TILE_BYTES if queries.device.type == "cpu" else TILE_BYTES


def _tiles(queries: Tensor, candidates: Tensor, largest: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Yields the ranges of queries and candidates whose differences are one tile of `largest` bytes, by default
    `TILE_BYTES`."""
    (*chunks, count, width), others = queries.shape, candidates.shape[-2]
    largest = TILE_BYTES if largest is None else largest
    pairs = max(1, largest // (queries.element_size() * max(1, width) * max(1, torch.Size(chunks).numel())))
    columns = min(others, pairs)
    rows = max(1, pairs // max(1, columns))
    for first in range(0, count, rows):
        for begin in range(0, others, columns):
            yield slice(first, first + rows), slice(begin, begin + columns)


def _differences(queries: Tensor, candidates: Tensor, rows: slice, columns: slice) -> Tensor:
    return queries[..., rows, :].unsqueeze(-2) - candidates[..., columns, :].unsqueeze(-3)


def _measured(kind: Kind, differences: Tensor) -> Tensor:
    if kind == "l1":
        return differences.abs_().sum(-1)
    if kind == "l2":
        return torch.linalg.vector_norm(differences, 2, -1)
    return _moduli(differences).sum(-1)


def _derivative(kind: Kind, differences: Tensor) -> Tensor:
    if kind == "l1":
        return differences.sign_()
    if kind == "l2":
        lengths = torch.linalg.vector_norm(differences, 2, -1, keepdim=True)
        return differences.div_(lengths.masked_fill_(lengths == 0, 1))
    moduli = _moduli(differences)
    moduli.masked_fill_(moduli == 0, 1)
    for half in differences.chunk(2, -1):
        half.div_(moduli)
    return differences


def _moduli(differences: Tensor) -> Tensor:
    re, im = differences.chunk(2, -1)
    return torch.hypot(re, im)
