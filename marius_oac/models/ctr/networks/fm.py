"""Factorization machine."""

from __future__ import annotations

from torch import Tensor

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.compute.pairs import second_order
from marius_oac.models.ctr.layers import FirstOrder
from marius_oac.models.ctr.network import Network, equal_dimension
from marius_oac.models.ctr.schema import Inputs, Schema
from marius_oac.types import present


class FactorizationMachine(Network):
    """A factorization machine (Rendle, "Factorization Machines", ICDM 2010, equation 1). Numbers are inputs of the
    linear part only."""

    first_order = True

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        equal_dimension(schema, config)
        self.linear = FirstOrder(schema.num_numbers)

    def forward(self, inputs: Inputs) -> Tensor:
        """See `Network.forward`."""
        return self.linear(inputs) + second_order(present(inputs.stacked))
