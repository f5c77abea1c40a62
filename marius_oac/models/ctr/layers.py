"""Layers that several networks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.ctr.schema import Inputs
from marius_oac.types import present


class MLP(nn.Sequential):
    """For each of `hidden`: a linear layer, batch norm if configured, ReLU, and dropout if configured. With `outputs` a
    linear layer of so many units follows.

    In training mode batch norm needs two examples. The step sets it to evaluation mode for a batch of one.
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
        """The linear part of the logits, float32 [B]."""
        logits = present(inputs.first_order).sum(1) + self.bias
        return logits if self.numbers is None else logits + self.numbers(inputs.numbers).squeeze(1)


def side_by_side(inputs: Inputs) -> Tensor:
    """All fields and numbers concatenated, float32 [B, sum of D_f + N]."""
    if inputs.stacked is None:
        return torch.cat((*inputs.fields, inputs.numbers), 1)
    flat = inputs.stacked.flatten(1)
    return torch.cat((flat, inputs.numbers), 1) if inputs.numbers.shape[1] else flat


def mask_of(padded: Tensor, lengths: Tensor) -> Tensor:
    """Which steps of `padded` [B, L, D] are values, not padding: bool [B, L]; lengths are int64 [B]."""
    return torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]


def mean_of(padded: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each sequence's values, [B, D], of `padded` [B, L, D] and lengths int64 [B]; zeros if empty."""
    summed = (padded * mask_of(padded, lengths)[..., None]).sum(1)
    return summed / lengths.clamp(min=1)[:, None]
