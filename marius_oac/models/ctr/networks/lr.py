"""Logistic regression."""

from __future__ import annotations

from torch import Tensor

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.ctr.layers import FirstOrder
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.schema import Inputs, Schema


class LogisticRegression(Network):
    """Logistic regression: the sum of every field's weight, a linear map of the numbers, and a bias."""

    first_order = True
    embeddings = False

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        self.linear = FirstOrder(schema.num_numbers)

    def forward(self, inputs: Inputs) -> Tensor:
        """See `Network.forward`."""
        return self.linear(inputs)
