"""DCN-V2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.ctr.layers import MLP, side_by_side
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.schema import Inputs, Schema


class CrossNetwork(nn.Module):
    """x_{l+1} = x_0 * (W_l x_l + b_l) + x_l (Wang et al., "DCN V2", WWW 2021, equation 1)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, first: Tensor) -> Tensor:
        """The last x, float32 [B, width], of x_0 = `first` [B, width]."""
        x = first
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class DCNv2(Network):
    """DCN-V2 with parallel cross network and MLP over embeddings and numbers (Wang et al., section 3)."""

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        self.cross = CrossNetwork(schema.width, config.cross_layers)
        self.deep = MLP(schema.width, config.hidden, config)
        self.last = nn.Linear(schema.width + self.deep.width, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """See `Network.forward`."""
        x = side_by_side(inputs)
        return self.last(torch.cat((self.cross(x), self.deep(x)), 1)).squeeze(1)
