"""What a loss must do, the package's or a user's own.

from marius_oac.testing.losses import check_loss

def test_my_loss():
    check_loss(MyLoss)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marius_oac.config.link_prediction import LossConfig
from marius_oac.models.link_prediction.losses import Loss
from marius_oac.testing.gradients import check_gradient

_EDGES, _NEGATIVES = 4, 6


def check_loss(make: type[Loss], exact_gradient: bool = True, **keys: Any) -> None:
    """Checks shape, gradient, candidates that are left out, and scores far from zero.

    Args:
        make: the loss's class.
        exact_gradient: False if a part of the loss is meant to be constant for the gradient.
        keys: of the section `training.loss`.

    Raises:
        AssertionError: something is wrong.
    """
    loss = make(LossConfig(kind="own.py:Own", **keys))
    random = torch.Generator().manual_seed(0)
    positive = torch.randn(_EDGES, generator=random, dtype=torch.float64)
    negatives = torch.randn(_EDGES, _NEGATIVES, generator=random, dtype=torch.float64)
    found = loss.losses(positive.clone(), negatives.clone(), _NEGATIVES)
    assert found.shape == positive.shape, f"losses returns {list(found.shape)}, not one for each of {_EDGES} edges"
    for i in range(_EDGES):
        one = loss.losses(positive[i : i + 1].clone(), negatives[i : i + 1].clone(), _NEGATIVES)
        assert torch.allclose(one[0], found[i]), "an edge's loss depends on other edges"
    chunks = loss.losses(torch.stack((positive, positive)), torch.stack((negatives, negatives)), _NEGATIVES)
    assert chunks.shape == (2, _EDGES), "losses of two chunks are not [2, edges]"
    better = loss.losses(positive + 0.1, negatives.clone(), _NEGATIVES)
    assert (better <= found).all() and (better < found).any(), "the loss does not fall as the positive score rises"
    worse = loss.losses(positive.clone(), negatives + 0.1, _NEGATIVES)
    assert (worse >= found).all() and (worse > found).any(), "the loss does not rise with the negative scores"
    _check_left_out(loss, positive, negatives, found)
    _check_far(loss, positive, negatives)
    if exact_gradient:
        check_gradient("losses", lambda p, n: loss.losses(p, n, _NEGATIVES), positive, negatives)


def _check_left_out(loss: Loss, positive: Tensor, negatives: Tensor, found: Tensor) -> None:
    nothing = torch.full((len(negatives), 1), -torch.inf, dtype=negatives.dtype)
    leaf = torch.cat((negatives, nothing), 1).requires_grad_()
    more = loss.losses(positive.clone(), leaf, _NEGATIVES)
    assert torch.allclose(more, found), "a score of -inf, which is no negative, changes the loss"
    (gradient,) = torch.autograd.grad(more.sum(), leaf)
    assert gradient[:, -1].eq(0).all(), "the gradient by a score of -inf is not 0"
    own, alone = positive.clone().requires_grad_(), nothing.clone().requires_grad_()
    losses = loss.losses(own, alone, _NEGATIVES)
    gradients = torch.autograd.grad(losses.sum(), (own, alone))
    finite = all(each.isfinite().all() for each in (losses, *gradients))
    assert finite, "loss or gradient is not finite where all negatives are left out"


def _check_far(loss: Loss, positive: Tensor, negatives: Tensor) -> None:
    for about in (-400.0, 400.0):
        own, others = ((each.float() + about).requires_grad_() for each in (positive, negatives))
        losses = loss.losses(own, others, _NEGATIVES)
        gradients = torch.autograd.grad(losses.sum(), (own, others))
        finite = all(each.isfinite().all() for each in (losses, *gradients))
        assert finite, f"loss or gradient is not finite for scores near {about}"
