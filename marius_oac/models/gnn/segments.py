"""Sums and attention over the edges of a block, with their gradients.

Sums use torch's embedding bags. Attention also uses kernels for float32 on the CPU, where torch would need several
passes over the edges.

Guarantees:
- The bits depend only on the arguments' values, not on the number of threads: one thread computes each sum, in the
  order of the block's edges, forward and backward. On CUDA only operations of torch with a fixed order are used: the
  forward pass of embedding bags, over the block for results and over `Block.by_source` for gradients, and maxima.
- On CUDA nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from marius_oac.kernels.cpu import messages as kernels
from marius_oac.models.gnn.block import Block
from marius_oac.runtime.thread_pool import Shared

_KERNEL_WORK = 4096  # edges and output rows of a task
_BAG_WORK = 16384  # a call of torch takes about 20 microseconds besides its work


def neighbours(values: Tensor, block: Block, thread_pool: Shared | None = None) -> tuple[Tensor, Tensor]:
    """The outputs' own values and the sums of their neighbours' values, both [O, D]; zeros without neighbours.

    Args:
        values: [n, D].
        thread_pool: runs the kernels; None: they run in this thread.

    Raises:
        ValueError: n is not `block.num_inputs`.
    """
    _check(values, block.num_inputs)
    return _Neighbours.apply(values, block, thread_pool)


def weighted_sum(values: Tensor, weights: Tensor, block: Block, thread_pool: Shared | None = None) -> Tensor:
    """The sums over each output's edges of weight times value, for each head, [O, H * D].

    Args:
        values: [n, H * D].
        weights: [E, H].
        thread_pool: runs the kernels; None: they run in this thread.

    Raises:
        ValueError: n is not `block.num_inputs`, or E not `block.num_edges`.
    """
    _check(values, block.num_inputs)
    _check(weights, block.num_edges)
    return _WeightedSum.apply(values, weights, block, thread_pool)


def attention(
    sources: Tensor, destinations: Tensor, slope: float, block: Block, thread_pool: Shared | None = None
) -> Tensor:
    """The softmax over each output's edges of LeakyReLU(source + destination), [E, H].

    Velickovic et al., ICLR 2018, equations 2 and 3, with the product with the attention vector split into two.

    Args:
        sources: [n, H], the contribution of an edge's source to its score.
        destinations: [O, H], the contribution of its destination.
        slope: of the LeakyReLU below zero.
        thread_pool: runs the kernels; None: they run in this thread.

    Raises:
        ValueError: n is not `block.num_inputs`, or O not `block.num_outputs`.
    """
    _check(sources, block.num_inputs)
    _check(destinations, block.num_outputs)
    return _Attention.apply(sources, destinations, slope, block, thread_pool)


def _check(tensor: Tensor, rows: int) -> None:
    if tensor.dim() != 2 or tensor.shape[0] != rows:
        raise ValueError(f"{tuple(tensor.shape)}, but the block needs {rows} rows")


class _Neighbours(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, block: Block, thread_pool: Shared | None) -> tuple[Tensor, Tensor]:
        ctx.block, ctx.thread_pool = block, thread_pool
        return values[: block.num_outputs].clone(), _sums(values, block.offsets, block.sources, thread_pool)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_own: Tensor, by_sums: Tensor) -> tuple[Tensor, None, None]:
        block = ctx.block
        gradient = _sums(by_sums, block.by_source.offsets, block.by_source.destinations, ctx.thread_pool)
        gradient[: block.num_outputs] += by_own
        return gradient, None, None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, block: Block, thread_pool: Shared | None) -> Tensor:
        ctx.save_for_backward(values, weights)
        ctx.block, ctx.thread_pool = block, thread_pool
        return _sums(values, block.offsets, block.sources, thread_pool, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (values, weights), block = ctx.saved_tensors, ctx.block
        by_values = by_weights = None
        if ctx.needs_input_grad[0]:
            back = block.by_source
            by_values = _sums(gradient, back.offsets, back.destinations, ctx.thread_pool, weights[back.edges])
        if ctx.needs_input_grad[1]:
            by_weights = _dots(values, gradient, block, weights.shape[1], ctx.thread_pool)
        return by_values, by_weights, None, None


class _Saved(NamedTuple):
    sources: Tensor
    destinations: Tensor
    weights: Tensor


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sources: Tensor, destinations: Tensor, slope: float, block: Block, thread_pool: Shared | None
    ) -> Tensor:
        attend = _attend_kernels if _fits(sources) else _attend_torch
        weights = attend(sources, destinations, slope, block, thread_pool)
        ctx.save_for_backward(sources, destinations, weights)
        ctx.slope, ctx.block, ctx.thread_pool = slope, block, thread_pool
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        back, saved = ctx.block.by_source, _Saved(*ctx.saved_tensors)
        differentiate = _attend_back_kernels if _fits(gradient) else _attend_back_torch
        by_edge, by_destination = differentiate(saved, gradient, ctx.slope, ctx.block, ctx.thread_pool)
        return _sums(by_edge, back.offsets, back.edges, ctx.thread_pool), by_destination, None, None, None


def _fits(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _sums(
    rows: Tensor, offsets: Tensor, picks: Tensor, thread_pool: Shared | None, weights: Tensor | None = None
) -> Tensor:
    """Sums of rows [., W]: sum i is over picks[offsets[i]:offsets[i + 1]]; each head times `weights` [E, H], if any."""
    if weights is None:
        return _bags(rows, offsets, picks, thread_pool)
    if not _fits(rows):
        heads = zip(rows.chunk(weights.shape[1], 1), weights.unbind(1), strict=True)
        return torch.cat([_bags(head, offsets, picks, thread_pool, own.contiguous()) for head, own in heads], 1)
    into = torch.empty(offsets.numel() - 1, rows.shape[1])
    kernel = partial(kernels.add_up_weighted, _array(rows), _array(weights))
    _share_out(kernel, offsets, picks, thread_pool, into)
    return into


def _bags(
    rows: Tensor, offsets: Tensor, picks: Tensor, thread_pool: Shared | None, weights: Tensor | None = None
) -> Tensor:
    rows, count = rows.detach().contiguous(), offsets.numel() - 1
    if not (picks.numel() and rows.shape[1]):
        return rows.new_zeros(count, rows.shape[1])
    if thread_pool is None or rows.device.type != "cpu":
        return _add_up(rows, offsets, picks, weights)
    into = rows.new_empty(count, rows.shape[1])

    def part(begin: int, end: int) -> None:
        first, last = offsets[begin].item(), offsets[end].item()
        own = None if weights is None else weights[first:last]
        into[begin:end] = _add_up(rows, offsets[begin : end + 1] - first, picks[first:last], own)

    thread_pool.run([partial(part, *bounds) for bounds in _cuts(offsets.numpy(), _BAG_WORK)])
    return into


def _add_up(rows: Tensor, offsets: Tensor, picks: Tensor, weights: Tensor | None) -> Tensor:
    return embedding_bag(picks, rows, offsets, mode="sum", include_last_offset=True, per_sample_weights=weights)


def _dots(values: Tensor, gradient: Tensor, block: Block, heads: int, thread_pool: Shared | None) -> Tensor:
    """Inner products [E, H] of each edge's source in `values` and its destination in `gradient`, for each head."""
    if not _fits(values):
        products = values[block.sources].mul_(gradient[block.destinations])
        return products.unflatten(1, (heads, -1)).sum(2)
    into = torch.empty(block.num_edges, heads)
    kernel = partial(kernels.dots, _array(values), _array(gradient))
    _share_out(kernel, block.offsets, block.sources, thread_pool, into)
    return into


def _attend_kernels(
    sources: Tensor, destinations: Tensor, slope: float, block: Block, thread_pool: Shared | None
) -> Tensor:
    weights = torch.empty(block.num_edges, sources.shape[1])
    kernel = partial(kernels.attend, _array(sources), _array(destinations), np.float32(slope))
    _share_out(kernel, block.offsets, block.sources, thread_pool, weights)
    return weights


def _attend_torch(
    sources: Tensor, destinations: Tensor, slope: float, block: Block, thread_pool: Shared | None
) -> Tensor:
    scores = torch.nn.functional.leaky_relu(sources[block.sources] + destinations[block.destinations], slope)
    places = block.destinations[:, None].expand_as(scores)
    largest = torch.full_like(destinations, -torch.inf).scatter_reduce(0, places, scores, "amax")
    parts = torch.exp(scores - largest[block.destinations])
    return parts / _over_edges(parts, block)[block.destinations]


def _attend_back_kernels(
    saved: _Saved, gradient: Tensor, slope: float, block: Block, thread_pool: Shared | None
) -> tuple[Tensor, Tensor]:
    by_edge, by_destination = torch.empty_like(saved.weights), torch.empty_like(saved.destinations)
    given = (_array(saved.sources), _array(saved.destinations), np.float32(slope))
    arrays = (_array(saved.weights), _array(gradient))

    def kernel(offsets: np.ndarray, picks: np.ndarray, *others: Any) -> None:
        kernels.attend_back(*given, offsets, picks, *arrays, *others)

    _share_out(kernel, block.offsets, block.sources, thread_pool, by_edge, by_destination)
    return by_edge, by_destination


def _attend_back_torch(
    saved: _Saved, gradient: Tensor, slope: float, block: Block, thread_pool: Shared | None
) -> tuple[Tensor, Tensor]:
    scores = saved.sources[block.sources] + saved.destinations[block.destinations]
    parts = saved.weights * gradient
    by_edge = parts - saved.weights * _over_edges(parts, block)[block.destinations]
    by_edge = torch.where(scores > 0, by_edge, slope * by_edge)
    return by_edge, _over_edges(by_edge, block)


def _over_edges(parts: Tensor, block: Block) -> Tensor:
    """The sums [O, H] over each output's edges of `parts` [E, H]."""
    return _bags(parts, block.offsets, torch.arange(block.num_edges, device=parts.device), None)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _share_out(kernel: Callable, offsets: Tensor, picks: Tensor, thread_pool: Shared | None, *into: Tensor) -> None:
    """Runs a kernel over ranges of rows that together are all rows."""
    ends, chosen, results = offsets.numpy(), picks.numpy(), [each.numpy() for each in into]
    tasks = [partial(kernel, ends, chosen, *bounds, *results) for bounds in _cuts(ends, _KERNEL_WORK)]
    if thread_pool is None:
        for task in tasks:
            task()
    else:
        thread_pool.run(tasks)


def _cuts(offsets: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Ranges of rows with about the same work, since some sources have many edges."""
    count = len(offsets) - 1
    work = offsets + np.arange(count + 1)
    inner = np.searchsorted(work, np.arange(size, work[-1], size))
    cuts = sorted({0, *inner.tolist(), count})
    return list(pairwise(cuts))
