"""DLRM."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from marius_oac.config_ctr import NetworkConfig
from marius_oac.errors import ConfigError
from marius_oac.models.ctr.layers import MLP
from marius_oac.models.ctr.network import KEY, Network, equal_dimension
from marius_oac.models.ctr.schema import Inputs, Schema


class _Pairs(torch.autograd.Function):
    """Some places of each row, none twice: [B, V * V] -> [B, P].

    The gradient is looked up too: an index adds up its own, on CUDA in no order, on the CPU in as long as the products.
    """

    @staticmethod
    def forward(ctx, products: Tensor, places: Tensor, found_at: Tensor) -> Tensor:
        ctx.save_for_backward(found_at)
        return products.index_select(1, places)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (found_at,) = ctx.saved_tensors
        return pad(gradient, (0, 1)).index_select(1, found_at), None, None


class DLRM(Network):
    """Naumov et al., "Deep Learning Recommendation Model", 2019, section 2.1.

    A bottom MLP makes one more vector of D floats out of the numbers; the inner products of all pairs of vectors, and
    the numbers' vector itself, go into the top MLP. Without numbers there is no bottom.
    """

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
        places = rows * vectors + columns
        found_at = torch.full((vectors * vectors,), len(places))  # no pair: the zero behind the last one's gradient
        found_at[places] = torch.arange(len(places))
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("found_at", found_at, persistent=False)
        self.top = MLP(len(places) + (dimension if schema.num_numbers else 0), config.hidden, config, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        vectors, numbers = inputs.stacked, None
        if self.bottom is not None:
            numbers = self.bottom(inputs.numbers)
            vectors = torch.cat((numbers[:, None], vectors), 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        pairs = _Pairs.apply(products, self.places, self.found_at)
        return self.top(pairs if numbers is None else torch.cat((numbers, pairs), 1)).squeeze(1)
