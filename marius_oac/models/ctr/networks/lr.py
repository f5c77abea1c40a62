"""Logistic regression."""

from __future__ import annotations

from torch import Tensor

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.ctr.layers import FirstOrder
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.schema import Inputs, Schema


class LogisticRegression(Network):
    """The sum of a weight of every field, a linear map of the numbers, and a bias."""

    first_order = True
    embeddings = False

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        self.linear = FirstOrder(schema.num_numbers)

    def forward(self, inputs: Inputs) -> Tensor:
        return self.linear(inputs)
