"""DLRM."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from marius_oac.config.ctr import NetworkConfig
from marius_oac.errors import ConfigError
from marius_oac.models.ctr.layers import MLP
from marius_oac.models.ctr.network import KEY, Network, equal_dimension
from marius_oac.models.ctr.schema import Inputs, Schema
from marius_oac.types import present


class DLRM(Network):
    """DLRM (Naumov et al., "Deep Learning Recommendation Model", 2019, section 2.1).

    A bottom MLP makes another vector of D floats from the numbers. The inputs of the top MLP are the inner products of
    all pairs of vectors, and the numbers' vector. Without numbers there is no bottom MLP.
    """

    pairs: Tensor

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        dimension = equal_dimension(schema, config)
        self.bottom = None
        vectors = len(schema.fields)
        if schema.num_numbers:
            self.bottom = nn.Sequential(MLP(schema.num_numbers, config.bottom, config, dimension), nn.ReLU())
            vectors += 1
        if vectors < 2:
            raise ConfigError("'dlrm' multiplies pairs of vectors: it needs two fields, or a field and numbers", KEY)
        rows, columns = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)
        self.top = MLP(len(rows) + (dimension if schema.num_numbers else 0), config.hidden, config, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """See `Network.forward`."""
        vectors, numbers = present(inputs.stacked), None
        if self.bottom is not None:
            numbers = self.bottom(inputs.numbers)
            vectors = torch.cat((numbers[:, None], vectors), 1)
        # No index occurs twice, so the gradient has no sums, and the same bits on CUDA too.
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(products if numbers is None else torch.cat((numbers, products), 1)).squeeze(1)
