"""DeepFM."""

from __future__ import annotations

from torch import Tensor

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.compute.pairs import pairs_beside
from marius_oac.models.ctr.layers import MLP, FirstOrder
from marius_oac.models.ctr.network import Network, equal_dimension
from marius_oac.models.ctr.schema import Inputs, Schema
from marius_oac.types import present


class DeepFM(Network):
    """A factorization machine and an MLP over the same embeddings (Guo et al., "DeepFM", IJCAI 2017, equations 1 to 4).

    Numbers are inputs of the linear part and of the MLP.
    """

    first_order = True

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        equal_dimension(schema, config)
        self.linear = FirstOrder(schema.num_numbers)
        self.deep = MLP(schema.width, config.hidden, config, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """See `Network.forward`."""
        pairs, beside = pairs_beside(present(inputs.stacked), inputs.numbers)
        return self.linear(inputs) + pairs + self.deep(beside).squeeze(1)
