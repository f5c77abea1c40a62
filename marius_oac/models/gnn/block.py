"""A message-flow block: the edges along which one layer of an encoder sends messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marius_oac.kernels.cpu import messages as kernels


class BySource(NamedTuple):
    """A block's edges grouped by source, those of one source in the block's order; int64.

    Attributes:
        offsets: [n + 1]: the edges of source i are [offsets[i], offsets[i + 1]).
        edges: [E], the index of each edge in the block.
        destinations: [E], the output of each edge.
    """

    offsets: Tensor
    edges: Tensor
    destinations: Tensor


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one layer, grouped by destination. The first O inputs are the outputs.

    Derived tensors are computed on first use, and kept.

    Args:
        offsets: int64 [O + 1]; the edges of output d are [offsets[d], offsets[d + 1]).
        sources: int64 [E], the input of each edge.
        num_inputs: n, at least O.

    Raises:
        ValueError: shapes, types or, on the CPU, values are invalid. On CUDA checking values would wait for the device.
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
        """O."""
        return self.offsets.numel() - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return self.sources.numel()

    @cached_property
    def degrees(self) -> Tensor:
        """The number of edges of each output, int64 [O]."""
        return self.offsets[1:] - self.offsets[:-1]

    @cached_property
    def destinations(self) -> Tensor:
        """The output of each edge, int64 [E]."""
        outputs = torch.arange(self.num_outputs, device=self.offsets.device)
        return torch.repeat_interleave(outputs, self.degrees, output_size=self.num_edges)

    @cached_property
    def by_source(self) -> BySource:
        """The edges grouped by source."""
        if self.sources.device.type == "cpu":
            found = [np.empty(size, np.int64) for size in (self.num_inputs + 1, self.num_edges, self.num_edges)]
            kernels.group_by_source(self.sources.numpy(), self.offsets.numpy(), *found)
            return BySource(*map(torch.from_numpy, found))
        ordered, edges = torch.sort(self.sources, stable=True)
        numbers = torch.arange(self.num_inputs + 1, device=ordered.device)
        return BySource(torch.searchsorted(ordered, numbers), edges, self.destinations[edges])

    @cached_property
    def with_own(self) -> Block:
        """This block with an edge from every output to itself, before its other edges."""
        outputs = torch.arange(self.num_outputs + 1, device=self.offsets.device)
        offsets = self.offsets + outputs
        sources = self.sources.new_empty(self.num_edges + self.num_outputs)
        sources[offsets[:-1]] = outputs[:-1]
        sources[torch.arange(self.num_edges, device=sources.device) + self.destinations + 1] = self.sources
        return Block(offsets, sources, self.num_inputs)
