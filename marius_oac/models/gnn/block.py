"""A message-flow block: who sends to whom in one layer of an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marius_oac.kernels.cpu import messages as kernels


class BySource(NamedTuple):
    """A block's edges grouped by source, those of one source in the block's order.

    int64: `offsets` [n + 1], where each source's edges begin; `edges` [E], their places in the block; `destinations`
    [E], the outputs that they lead to.
    """

    offsets: Tensor
    edges: Tensor
    destinations: Tensor


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one layer, grouped by destination. The first inputs are the outputs themselves.

    What is derived from them is kept once it was asked for.

    Args:
        offsets: int64 [O + 1]; the edges of output d are [offsets[d], offsets[d + 1]).
        sources: int64 [E], the input that each edge comes from.
        num_inputs: n, at least O.
    Raises:
        ValueError: the shapes or types don't fit, or on the CPU the numbers; on CUDA looking at them would wait for the
            device.
    """

    offsets: Tensor
    sources: Tensor
    num_inputs: int

    def __post_init__(self) -> None:
        for name, tensor in (("offsets", self.offsets), ("sources", self.sources)):
            if tensor.dtype != torch.int64 or tensor.dim() != 1 or not tensor.is_contiguous():
                raise ValueError(f"{name} must be int64 in one piece, not {tensor.dtype} {tuple(tensor.shape)}")
        if not 0 <= self.num_outputs <= self.num_inputs:
            raise ValueError(f"{self.num_outputs} outputs of {self.num_inputs} inputs")
        if self.offsets.device.type == "cpu":
            ends = self.offsets.numpy()
            if ends[0] != 0 or ends[-1] != self.num_edges or (ends[1:] < ends[:-1]).any():
                raise ValueError(f"offsets must ascend from 0 to the {self.num_edges} edges")
            if self.num_edges and not (self.sources.min() >= 0 and self.sources.max() < self.num_inputs):
                raise ValueError(f"sources must be 0 to {self.num_inputs - 1}")

    @property
    def num_outputs(self) -> int:
        return self.offsets.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.sources.numel()

    @cached_property
    def degrees(self) -> Tensor:
        """Edges of each output, int64 [O]."""
        return self.offsets[1:] - self.offsets[:-1]

    @cached_property
    def destinations(self) -> Tensor:
        """The output that each edge leads to, int64 [E]."""
        outputs = torch.arange(self.num_outputs, device=self.offsets.device)
        return torch.repeat_interleave(outputs, self.degrees, output_size=self.num_edges)

    @cached_property
    def by_source(self) -> BySource:
        if self.sources.device.type == "cpu":
            offsets, edges, destinations = (
                np.empty(size, np.int64) for size in (self.num_inputs + 1, self.num_edges, self.num_edges)
            )
            kernels.group_by_source(self.sources.numpy(), self.offsets.numpy(), offsets, edges, destinations)
            return BySource(*map(torch.from_numpy, (offsets, edges, destinations)))
        ordered, edges = torch.sort(self.sources, stable=True)
        numbers = torch.arange(self.num_inputs + 1, device=ordered.device)
        return BySource(torch.searchsorted(ordered, numbers), edges, self.destinations[edges])

    @cached_property
    def with_own(self) -> Block:
        """This block with one more edge to every output, its first: from itself."""
        outputs = torch.arange(self.num_outputs + 1, device=self.offsets.device)
        offsets = self.offsets + outputs
        sources = self.sources.new_empty(self.num_edges + self.num_outputs)
        sources[offsets[:-1]] = outputs[:-1]
        sources[torch.arange(self.num_edges, device=sources.device) + self.destinations + 1] = self.sources
        return Block(offsets, sources, self.num_inputs)
