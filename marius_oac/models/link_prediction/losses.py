"""Training losses of one positive score p and K negative scores n_k, per edge and side, in torch.

| kind | loss |
|---|---|
| softmax | log(e^p + sum_k e^{n_k}) - p: cross-entropy over [positive, negatives] (Lacroix et al., ICML 2018, eq. 3) |
| logistic | softplus(-p) + mean_k softplus(n_k) (ComplEx, equation 10, the negatives sharing one weight) |
| margin | mean_k max(0, margin - p + n_k) (Bordes et al., NIPS 2013, equation 1) |
| self_adversarial | softplus(-(p + margin)) + sum_k w_k softplus(n_k + margin), w = softmax(temperature n) |

softplus(x) = log(1 + e^x). The last is RotatE's (Sun et al., ICLR 2019, equations 5 and 6): scores are -distance,
margin is gamma, and no gradient passes through w.

An edge's own end is never its negative. If all entities are candidates, the negatives are all others; a sampled
negative that equals the own end is left out. A score of `-inf` leaves a candidate out. Means divide by `count`, the
number of sampled negatives or of all other entities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from marius_oac.config.link_prediction import LossConfig
from marius_oac.config.parts import LOSSES
from marius_oac.kernels.cpu import losses as kernels
from marius_oac.models.compute.parts import part_class

KEY = "training.loss.kind"


class Loss(ABC):
    """A training loss, made of the configuration's section `training.loss`; the base class of a user's own, which needs
    only `losses`.

    Attributes:
        code: of its kernel, in `kernels.cpu.losses`; None: autograd computes its gradient on the CPU, too.
        held: how many times autograd holds the scores of a batch on a device.
        kept: and how many times from the forward pass to the backward pass.
        one_gradient: whether the gradients by positive and negative scores are parts of one array.
    """

    code: int | None = None
    held = 2
    kept = 1
    one_gradient = False

    def __init__(self, config: LossConfig) -> None:
        self.config = config

    @abstractmethod
    def losses(self, positive: Tensor, negatives: Tensor, count: int) -> Tensor:
        """The losses [...] of positive scores [...] and negative scores [..., K], of which -inf is no negative.

        Args:
            count: the divisor of means over negatives, at least 1.
        """


class Softmax(Loss):
    """Cross-entropy."""

    code, one_gradient = kernels.SOFTMAX, True

    def losses(self, positive: Tensor, negatives: Tensor, count: int) -> Tensor:
        """See `Loss.losses`."""
        scores = torch.cat((positive.unsqueeze(-1), negatives), -1)
        del negatives  # frees them if the caller doesn't hold them
        return _CrossEntropy.apply(scores)


class Logistic(Loss):
    """Binary cross-entropy."""

    code = kernels.LOGISTIC

    def losses(self, positive: Tensor, negatives: Tensor, count: int) -> Tensor:
        """See `Loss.losses`."""
        return softplus(-positive) + softplus(negatives).sum(-1) / count


class Margin(Loss):
    """Margin ranking."""

    code = kernels.MARGIN

    def losses(self, positive: Tensor, negatives: Tensor, count: int) -> Tensor:
        """See `Loss.losses`."""
        return torch.relu_(negatives - (positive - self.config.margin).unsqueeze(-1)).sum(-1) / count


class SelfAdversarial(Loss):
    """RotatE's, whose negatives have weights by their scores."""

    code, held, kept = kernels.SELF_ADVERSARIAL, 3, 2

    def losses(self, positive: Tensor, negatives: Tensor, count: int) -> Tensor:
        """See `Loss.losses`."""
        margin = self.config.margin
        # If every negative was left out, the weights are 0 / 0. A NaN score still reaches the loss through softplus.
        weights = torch.softmax(self.config.temperature * negatives.detach(), -1).nan_to_num_(0.0)
        shifted = negatives + margin
        del negatives
        return softplus(-(positive + margin)) + softplus(shifted).mul_(weights).sum(-1)


def make_loss(config: LossConfig) -> Loss:
    """The loss of the configuration."""
    return part_class(config.kind, LOSSES, Loss, KEY)(config)


class _CrossEntropy(torch.autograd.Function):
    """-log of the softmax of scores [..., K] at index 0. It keeps one [..., K], which the gradient overwrites, so it
    can be differentiated only once."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        logarithms = torch.log_softmax(scores, -1)
        ctx.save_for_backward(logarithms)
        return -logarithms[..., 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (logarithms,) = ctx.saved_tensors
        by_scores = logarithms.exp_().mul_(gradient.unsqueeze(-1))
        by_scores[..., 0].sub_(gradient)
        return by_scores
