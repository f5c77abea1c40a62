"""Gradients by autograd against differences of values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_STEP = 1e-6


def check_gradient(name: str, function: Callable[..., Tensor], *given: Tensor) -> None:
    """Compares the derivatives along some directions, in float64. `function` is differentiated once for each call.

    Raises:
        AssertionError: there is no gradient, or it is another one.
    """
    random = torch.Generator().manual_seed(1)
    for _ in range(5):
        leaves = [each.detach().clone().requires_grad_() for each in given]
        directions = [torch.randn(each.shape, generator=random, dtype=each.dtype) for each in given]
        found = function(*leaves)
        assert found.requires_grad, f"{name} has no gradient"
        weights = torch.randn(found.shape, generator=random, dtype=found.dtype)
        gradients = torch.autograd.grad((found * weights).sum(), leaves, allow_unused=True)
        mine = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True) if g is not None)
        with torch.no_grad():
            ends = [
                function(*(each + sign * _STEP * d for each, d in zip(given, directions, strict=True)))
                for sign in (1, -1)
            ]
        exact = ((ends[0] - ends[1]) * weights).sum() / (2 * _STEP)
        good = torch.allclose(torch.as_tensor(mine, dtype=exact.dtype), exact, rtol=1e-5, atol=1e-6)
        assert good, f"{name}: autograd's gradient is not that of the values"
