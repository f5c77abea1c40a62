"""Training losses of one positive score p and K negative scores n_k, per edge and side, in torch.

| kind | loss |
|---|---|
| softmax | log(e^p + sum_k e^{n_k}) - p: cross-entropy over [positive, negatives] (Lacroix et al., ICML 2018, eq. 3) |
| logistic | softplus(-p) + mean_k softplus(n_k) (ComplEx, equation 10, the negatives sharing one weight) |
| margin | mean_k max(0, margin - p + n_k) (Bordes et al., NIPS 2013, equation 1) |
| self_adversarial | softplus(-(p + margin)) + sum_k w_k softplus(n_k + margin), w = softmax(temperature n) |

softplus(x) = log(1 + e^x). The last is RotatE's (Sun et al., ICLR 2019, equations 5 and 6): scores are -distance,
margin is gamma, and no gradient passes through w.

An edge's own end is never its negative: with all entities as candidates the negatives are all the others, and a drawn
negative that happens to be that end is left out. `-inf` takes a candidate out; `count` is what a mean divides by: the
negatives drawn, or all other entities.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from marius_oac.config.link_prediction import LossConfig


def edge_losses(config: LossConfig, positive: Tensor, negatives: Tensor, count: int) -> Tensor:
    """Losses [...] of positive scores [...] and negative scores [..., K]; -inf is no negative.

    Args:
        count: what the mean over negatives divides by, at least 1.
    """
    margin = config.margin
    if config.kind == "softmax":
        scores = torch.cat((positive.unsqueeze(-1), negatives), -1)
        del negatives  # who has given them away need not hold them
        return _CrossEntropy.apply(scores)
    if config.kind == "logistic":
        return softplus(-positive) + softplus(negatives).sum(-1) / count
    if config.kind == "margin":
        return torch.relu_(negatives - (positive - margin).unsqueeze(-1)).sum(-1) / count
    # Where every negative was left out the weights are 0 / 0; a NaN score still shows, through softplus.
    weights = torch.softmax(config.temperature * negatives.detach(), -1).nan_to_num_(0.0)
    shifted = negatives + margin
    del negatives
    return softplus(-(positive + margin)) + softplus(shifted).mul_(weights).sum(-1)


class _CrossEntropy(torch.autograd.Function):
    """-log of the softmax of scores [..., K] at the first; holds one [..., K] for its gradient, which takes its place:
    it can be differentiated once, and that once only."""

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
