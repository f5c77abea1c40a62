"""Layers of an encoder: GraphSAGE and GAT on blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from marius_oac.models.compute.products import linear
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.segments import attention, neighbours, weighted_sum
from marius_oac.runtime.thread_pool import Shared
from marius_oac.types import present

_SLOPE = 0.2  # Velickovic et al., section 2.1


class Layer(nn.Module):
    """A layer of an encoder, called as `layer(values [n, D], block, thread_pool) -> [O, width]`, all float32.

    Attributes:
        width: floats of an output.
        activation: applied between this layer and the next.
    """

    width: int
    activation: Callable[[Tensor], Tensor]


class Means(NamedTuple):
    """The inputs of a GraphSAGE layer's products.

    Attributes:
        own: float32 [O, D], the outputs' own values; None for `gcn`.
        means: float32 [O, D], the means of the neighbours' values; for `gcn` including the node's own.
    """

    own: Tensor | None
    means: Tensor


class SageLayer(Layer):
    """A GraphSAGE layer without activation and normalisation (Hamilton et al., NIPS 2017, Algorithm 1).

    `mean`: W [own | mean of the neighbours] + b, lines 4 and 5; without neighbours the mean is zero. `gcn`: W times the
    mean of a node and its neighbours, + b (equation 2).

    Args:
        inputs, outputs: the numbers of floats of an input and an output.
    """

    activation = staticmethod(torch.relu)

    def __init__(self, inputs: int, outputs: int, aggregator: Literal["mean", "gcn"] = "mean") -> None:
        super().__init__()
        self.aggregator, self.width = aggregator, outputs
        self.own = nn.Parameter(torch.empty(outputs, inputs)) if aggregator == "mean" else None
        self.neighbours = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, values: Tensor, block: Block, thread_pool: Shared | None = None) -> Tensor:
        """See `Layer`."""
        # Means come before the product, though rows may be wider than outputs, because there are fewer outputs.
        own, sums = neighbours(values, block, thread_pool)
        degrees = block.degrees.to(values.dtype)[:, None]
        if self.own is None:
            return self.combine(Means(None, (sums + own) / (degrees + 1)), thread_pool)
        return self.combine(Means(own, sums / degrees.clamp(min=1)), thread_pool)

    def combine(self, given: Means, thread_pool: Shared | None = None) -> Tensor:
        """The outputs, float32 [O, width], from the means."""
        if self.own is None:
            return linear(self.bias, thread_pool, given.means, self.neighbours)
        return linear(self.bias, thread_pool, present(given.own), self.own, given.means, self.neighbours)


class GatLayer(Layer):
    """A graph attention layer without activation (Velickovic et al., ICLR 2018, equations 1 to 6).

    Equation 3's a^T [W h_i | W h_j] is `destination` . W h_i + `source` . W h_j. An output without edges is the bias.

    Args:
        inputs: the number of floats of an input.
        outputs: the number of floats of each head.
        merge: concatenate the heads (equation 5), or average them (equation 6).
        attend_to_self: a node is always its own neighbour, as in the paper; else only if the block has that edge.
    """

    activation = staticmethod(elu)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        heads: int = 1,
        merge: Literal["concat", "mean"] = "concat",
        attend_to_self: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.merge, self.attend_to_self = heads, merge, attend_to_self
        self.width = heads * outputs if merge == "concat" else outputs
        self.weight = nn.Parameter(torch.empty(heads * outputs, inputs))
        self.source = nn.Parameter(torch.empty(heads, outputs))
        self.destination = nn.Parameter(torch.empty(heads, outputs))
        self.bias = nn.Parameter(torch.empty(self.width))

    def forward(self, values: Tensor, block: Block, thread_pool: Shared | None = None) -> Tensor:
        """See `Layer`."""
        if self.attend_to_self:
            block = block.with_own
        projected = linear(None, thread_pool, values, self.weight)
        # Multiplying the vectors with W first makes scores a narrow product of the values.
        vectors = torch.stack((self.source, self.destination))
        folded = (vectors[..., None] * self.weight.view(*self.source.shape, -1)).sum(2)
        scores = linear(None, thread_pool, values, folded.flatten(0, 1))
        sources, destinations = scores[:, : self.heads], scores[: block.num_outputs, self.heads :]
        weights = attention(sources, destinations, _SLOPE, block, thread_pool)
        sums = weighted_sum(projected, weights, block, thread_pool)
        if self.merge == "mean":
            sums = sums.view(-1, self.heads, self.width).mean(1)
        return sums + self.bias
