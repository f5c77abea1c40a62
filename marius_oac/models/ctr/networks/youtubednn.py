"""YouTubeDNN, as a ranker."""

from __future__ import annotations

import torch
from torch import Tensor

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.ctr.layers import MLP, mean_of, side_by_side
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.schema import Inputs, Schema


class YouTubeDNN(Network):
    """An MLP with one logit over the mean of each sequence, the fields and the numbers (Covington, Adams and Sargin,
    RecSys 2016, figure 7). `data.weight` with `of: clicks` weighs clicks by watch time (section 4.2)."""

    takes_sequences = True

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        self.deep = MLP(schema.width + sum(each.dimension for each in schema.sequences), config.hidden, config, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """See `Network.forward`."""
        means = [mean_of(*inputs.sequences[each.name]) for each in self.schema.sequences]
        return self.deep(torch.cat((side_by_side(inputs), *means), 1)).squeeze(1)
