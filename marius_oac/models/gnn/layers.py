"""Layers of an encoder: GraphSAGE and GAT on blocks.

A layer is an `nn.Module` with a `width`, floats of an output, an `activation` between it and the next layer, and
`forward(values [n, D], block, thread_pool) -> [O, width]`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from marius_oac.models.compute.products import linear
from marius_oac.models.compute.thread_pool import Shared
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.segments import attention, neighbours, weighted_sum

_SLOPE = 0.2  # Velickovic et al., section 2.1


class Means(NamedTuple):
    """What a GraphSAGE layer's matrices are multiplied with.

    Attributes:
        own: [O, D], the outputs' own values; None for `gcn`.
        means: [O, D], of the neighbours' values; for `gcn` of a node's own, too.
    """

    own: Tensor | None
    means: Tensor


class SageLayer(nn.Module):
    """A GraphSAGE layer without activation and normalisation (Hamilton et al., NIPS 2017, Algorithm 1).

    `mean`: W [own | mean of the neighbours] + b, lines 4 and 5; without neighbours the mean is zero. `gcn`: W times the
    mean of a node and its neighbours, + b (equation 2).

    Args:
        inputs, outputs: floats of an input and an output.
    """

    activation = staticmethod(torch.relu)

    def __init__(self, inputs: int, outputs: int, aggregator: Literal["mean", "gcn"] = "mean") -> None:
        super().__init__()
        self.aggregator, self.width = aggregator, outputs
        self.own = nn.Parameter(torch.empty(outputs, inputs)) if aggregator == "mean" else None
        self.neighbours = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, values: Tensor, block: Block, thread_pool: Shared | None = None) -> Tensor:
        # Means first, though rows may be wider than outputs: there are fewer outputs than inputs to multiply.
        own, sums = neighbours(values, block, thread_pool)
        degrees = block.degrees.to(values.dtype)[:, None]
        if self.own is None:
            return self.combine(Means(None, (sums + own) / (degrees + 1)), thread_pool)
        return self.combine(Means(own, sums / degrees.clamp(min=1)), thread_pool)

    def combine(self, given: Means, thread_pool: Shared | None = None) -> Tensor:
        """The outputs, [O, width], where the means are known."""
        if self.own is None:
            return linear(self.bias, thread_pool, given.means, self.neighbours)
        return linear(self.bias, thread_pool, given.own, self.own, given.means, self.neighbours)


class GatLayer(nn.Module):
    """A graph attention layer without activation (Velickovic et al., ICLR 2018, equations 1 to 6).

    Equation 3's a^T [W h_i | W h_j] is `destination` . W h_i + `source` . W h_j. Without edges an output is its bias.

    Args:
        inputs: floats of an input.
        outputs: floats of each head.
        merge: heads side by side (equation 5), or their mean (equation 6).
        attend_to_self: a node is one of its neighbours, as in the paper; else only where the block says so.
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
        if self.attend_to_self:
            block = block.with_own
        projected = linear(None, thread_pool, values, self.weight)
        # The vectors times W first: then scores are a narrow product of the values.
        vectors = torch.stack((self.source, self.destination))
        folded = (vectors[..., None] * self.weight.view(*self.source.shape, -1)).sum(2)
        scores = linear(None, thread_pool, values, folded.flatten(0, 1))
        sources, destinations = scores[:, : self.heads], scores[: block.num_outputs, self.heads :]
        weights = attention(sources, destinations, _SLOPE, block, thread_pool)
        sums = weighted_sum(projected, weights, block, thread_pool)
        if self.merge == "mean":
            sums = sums.view(-1, self.heads, self.width).mean(1)
        return sums + self.bias
