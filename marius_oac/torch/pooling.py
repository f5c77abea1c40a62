"""Rows picked from the leaf of a batch, and bags of them, with gradients that are summed by kernels of ours.

Torch's own gradients of a leaf take five to ten times as long, those of its embedding functions even longer. Ours are
summed in the order of the batch's keys. Those of gradients (`create_graph=True`) are made of torch's operations.

All is done by the thread that calls. Torch's threads wait actively for each other, and where the pipeline has the
cores, picking rows with them took up to ten times the processor time.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import numpy as np
import torch
from torch.autograd import Function
from torch.nn import functional

from marius_oac.kernels.cpu import leaves as kernels

_NO_WEIGHTS = np.empty(0, np.float32)

Operation = TypeVar("Operation", bound=type[Function])


def picked(leaf: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The rows of `leaf`, float32 [m, D], at `places`, int64 [n]."""
    return _Pick.apply(leaf, places)


def pooled(
    leaf: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, mode: str, weights: torch.Tensor | None,
    padding: int,
) -> torch.Tensor:  # fmt: skip
    """The sum, mean or maximum of the rows of each bag, float32 [b, D].

    Args:
        leaf: float32 [m, D].
        places: int64 [n], in `leaf`.
        offsets: int64 [b + 1], where each bag begins.
        mode: sum, mean or max.
        weights: float32 [n], of a sum; None: there are none.
        padding: a place that counts as none; -1: there is none.
    """
    if mode == "max":
        found, _ = _Max.apply(leaf, places, offsets, padding)
    else:
        found, _ = _Pool.apply(leaf, places, offsets, padding, weights, mode == "mean")
    return found


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().numpy())  # torch's `contiguous` wakes its threads


def _zeros(shape: tuple[int, int]) -> torch.Tensor:
    """float32 0s, which torch's threads don't write: new memory of the system's has them."""
    return torch.from_numpy(np.zeros(shape, np.float32))


def _with_signature(operation: Operation) -> Operation:
    """Keeps the signature of `forward`, which `apply` would make anew for each call: half the time of a small one."""
    operation.forward.__signature__ = inspect.signature(operation.forward)  # type: ignore[attr-defined]
    return operation


@_with_signature
class _Pick(Function):
    @staticmethod
    def forward(leaf: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        found = leaf.new_empty((len(places), leaf.shape[1]))
        kernels.gather(_array(leaf), _array(places), found.numpy())
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        leaf, places = inputs
        ctx.save_for_backward(places)
        ctx.shape = leaf.shape

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (places,), (gradient,), sums = ctx.saved_tensors, gradients, _zeros(ctx.shape)
        if torch.is_grad_enabled():
            return sums.index_add(0, places, gradient), None
        kernels.add(_array(gradient), _array(places), sums.numpy())
        return sums, None


@_with_signature
class _Pool(Function):
    @staticmethod
    def forward(
        leaf: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, padding: int, weights: torch.Tensor | None,
        mean: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """The bags, and what the sum of each was multiplied by, float32 [b]."""
        found, scales = leaf.new_empty((len(offsets) - 1, leaf.shape[1])), leaf.new_empty(len(offsets) - 1)
        bags = _array(leaf), _array(places), _array(offsets)
        kernels.pool(*bags, _weights(weights), padding, mean, scales.numpy(), found.numpy())
        return found, scales

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        leaf, places, offsets, ctx.padding, weights, _ = inputs
        ctx.shape = leaf.shape
        ctx.mark_non_differentiable(output[1])
        by_weights = weights is not None and weights.requires_grad
        ctx.save_for_backward(places, offsets, output[1], weights, leaf if by_weights else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        by = _differentiable if torch.is_grad_enabled() else _summed
        by_leaf, by_weights = by(ctx, gradients[0], *ctx.saved_tensors)
        return by_leaf, None, None, None, by_weights, None


def _weights(weights: torch.Tensor | None) -> np.ndarray:
    return _NO_WEIGHTS if weights is None else _array(weights)


def _summed(
    ctx: Any, gradient: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, scales: torch.Tensor,
    weights: torch.Tensor | None, leaf: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Gradients of the leaf and of the weights."""
    by_leaf, by_weights = _zeros(ctx.shape), None
    gradients, where = _array(gradient), (_array(places), _array(offsets))
    kernels.share_out(gradients, *where, _weights(weights), ctx.padding, _array(scales), by_leaf.numpy())
    if leaf is not None:
        by_weights = torch.zeros(len(places))
        kernels.of_weights(gradients, _array(leaf), *where, ctx.padding, by_weights.numpy())
    return by_leaf, by_weights


def _differentiable(
    ctx: Any, gradient: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, scales: torch.Tensor,
    weights: torch.Tensor | None, leaf: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The same, of torch's operations."""
    bag = torch.repeat_interleave(torch.arange(len(scales)), offsets.diff())
    places, rest = places[: len(bag)], len(places) - len(bag)  # in no bag
    each, by_weights = (gradient * scales[:, None])[bag].masked_fill((places == ctx.padding)[:, None], 0), None
    if leaf is not None:
        by_weights = functional.pad((each * leaf[places]).sum(1), (0, rest))
    if weights is not None:
        each = each * weights[: len(bag), None]
    return torch.zeros(ctx.shape).index_add(0, places, each), by_weights


@_with_signature
class _Max(Function):
    @staticmethod
    def forward(
        leaf: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, padding: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The bags, and the places of their numbers."""
        shape = len(offsets) - 1, leaf.shape[1]
        found, chosen = leaf.new_empty(shape), places.new_empty(shape)
        kernels.largest(_array(leaf), _array(places), _array(offsets), padding, found.numpy(), chosen.numpy())
        return found, chosen

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (chosen,) = ctx.saved_tensors
        filled = (chosen >= 0).any(1)
        return torch.zeros(ctx.shape).scatter_add(0, chosen[filled], gradients[0][filled]), None, None, None
