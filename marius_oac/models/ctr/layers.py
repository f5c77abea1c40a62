"""Layers that several networks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.ctr.schema import Inputs


class MLP(nn.Sequential):
    """Linear, batch norm if asked for, ReLU, dropout if asked for; once for each of `hidden`. With `outputs` a linear
    layer of so many units follows.

    In training mode batch norm needs two examples; the step puts it into evaluation mode for a batch of one.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], config: NetworkConfig, outputs: int | None = None) -> None:
        layers: list[nn.Module] = []
        for width in hidden:
            layers.append(nn.Linear(inputs, width))
            if config.batch_norm:
                layers.append(nn.BatchNorm1d(width))
            layers.append(nn.ReLU())
            if config.dropout:
                layers.append(nn.Dropout(config.dropout))
            inputs = width
        if outputs is not None:
            layers.append(nn.Linear(inputs, outputs))
        super().__init__(*layers)
        self.width = inputs if outputs is None else outputs


class FirstOrder(nn.Module):
    """w_0 + sum of the fields' weights + a linear map of the numbers; the linear part of FM (Rendle 2010, eq. 1)."""

    def __init__(self, num_numbers: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.numbers = nn.Linear(num_numbers, 1, bias=False) if num_numbers else None

    def forward(self, inputs: Inputs) -> Tensor:
        logits = inputs.first_order.sum(1) + self.bias
        return logits if self.numbers is None else logits + self.numbers(inputs.numbers).squeeze(1)


def second_order(stacked: Tensor) -> Tensor:
    """Sum over pairs of fields of their inner products, [B], of [B, F, D] (Rendle 2010, lemma 3.1)."""
    return 0.5 * (stacked.sum(1).square() - stacked.square().sum(1)).sum(1)


def side_by_side(inputs: Inputs) -> Tensor:
    """All fields and numbers, [B, sum of D_f + N]."""
    if inputs.stacked is None:
        return torch.cat((*inputs.fields, inputs.numbers), 1)
    flat = inputs.stacked.flatten(1)
    return torch.cat((flat, inputs.numbers), 1) if inputs.numbers.shape[1] else flat


def mask_of(padded: Tensor, lengths: Tensor) -> Tensor:
    """Which steps of [B, L, D] are values and no padding, bool [B, L]."""
    return torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]


def mean_of(padded: Tensor, lengths: Tensor) -> Tensor:
    """Mean of each sequence's values, [B, D]; zeros where it is empty."""
    summed = (padded * mask_of(padded, lengths)[..., None]).sum(1)
    return summed / lengths.clamp(min=1)[:, None]
