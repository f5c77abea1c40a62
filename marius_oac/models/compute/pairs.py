"""The inner products of all pairs of a click's fields, and the fields beside the numbers: two uses of one array.

Guarantee: `pairs_beside` on a pool has the bits of torch's own operations, forward and backward. It allocates no array
of the fields' size but its results, which are scratch where the pool has one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from marius_oac.kernels.cpu import pairs as kernels
from marius_oac.models.compute.multiply import on_one_thread
from marius_oac.models.compute.tiles import blocks

_BLOCK_ROWS = 512


def second_order(stacked: Tensor) -> Tensor:
    """The sum of the inner products of all pairs of fields, [B], of fields [B, F, D] (Rendle 2010, lemma 3.1)."""
    return 0.5 * (stacked.sum(1).square() - stacked.square().sum(1)).sum(1)


def pairs_beside(stacked: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """`second_order` of fields [B, F, D], and the fields beside the numbers [B, N]: [B, F D + N]."""
    if has_torch_function((stacked, numbers)):
        return handle_torch_function(pairs_beside, (stacked, numbers), stacked, numbers)
    pairs, flat = second_order(stacked), stacked.flatten(1)
    return pairs, torch.cat((flat, numbers), 1) if numbers.shape[1] else flat


class PooledPairs(torch.autograd.Function):
    """`pairs_beside` of arrays in C order on the pool of `mode`, a `products.PooledProducts`."""

    @staticmethod
    def forward(ctx: Any, mode: Any, stacked: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        size, count, dimension = stacked.shape
        pairs, sums = mode.empty(size), mode.empty(size, dimension)
        beside = mode.empty(size, count * dimension + numbers.shape[1])
        ctx.save_for_backward(stacked, sums)
        ctx.mode = mode
        given = (stacked.detach(), numbers, pairs, sums, beside)
        cuts = blocks(0, size, _BLOCK_ROWS)
        mode.thread_pool.run([partial(_open, *(each[begin:end] for each in given)) for begin, end in cuts])
        return pairs, beside

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_pairs: Tensor, by_beside: Tensor) -> tuple[None, Tensor, None]:
        stacked, sums = ctx.saved_tensors
        into = ctx.mode.empty(*stacked.shape)
        given = [stacked, sums, by_pairs.contiguous(), by_beside.contiguous(), into]
        arrays = [each.detach().numpy() for each in given]
        cuts = blocks(0, len(stacked), _BLOCK_ROWS)
        ctx.mode.thread_pool.run(
            [partial(kernels.differentiate, *(each[begin:end] for each in arrays)) for begin, end in cuts]
        )
        return None, into, None


def _open(stacked: Tensor, numbers: Tensor, pairs: Tensor, sums: Tensor, beside: Tensor) -> None:
    on_one_thread()
    torch.sum(stacked, 1, out=sums)
    pairs.copy_(0.5 * (sums.square() - stacked.square().sum(1)).sum(1))
    arrays: list[np.ndarray] = [each.numpy() for each in (stacked.flatten(1), numbers, beside)]
    kernels.put_beside(*arrays)
