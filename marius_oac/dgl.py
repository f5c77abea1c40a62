"""The bridge to dgl, an extra of this package (`pip install 'marius-oac[dgl]'`): nothing else here needs it.

- Blocks to dgl's and back; a `dgl.nn` module as a layer of an `Encoder`.
- dgl's neighbour sampler, which makes our blocks.

A module of dgl adds up in an order that may depend on dgl's version and number of threads: what is promised of bits
holds for our own layers.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from marius_oac.errors import InputError
from marius_oac.models.gnn.block import Block
from marius_oac.models.lanes import Lanes


def load() -> ModuleType:
    """The module dgl.

    Raises:
        InputError: it is not installed, or does not work here; says what to install.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else dgl asks in a file of the user's home
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dgl 1.1 uses what its dependencies have since deprecated
            return importlib.import_module("dgl")
    except ImportError as error:
        raise InputError(
            f"can't be imported ({error}); on Python up to 3.11: pip install 'marius-oac[dgl]'", "dgl"
        ) from None


def to_dgl(block: Block) -> Any:
    """The same block as dgl has it, a `DGLBlock` with int64 ids."""
    edges = torch.arange(block.num_edges, device=block.sources.device)
    arrays = ("csc", (block.offsets, block.sources, edges))
    return load().create_block(arrays, num_src_nodes=block.num_inputs, num_dst_nodes=block.num_outputs)


def from_dgl(block: Any) -> Block:
    """A `DGLBlock` of one kind of nodes and edges as ours.

    Its outputs must be its first inputs, which is how `dgl.to_block` and dgl's samplers make them.
    """
    offsets, sources, _ = block.adj_tensors("csc")
    return Block(offsets.long(), sources.long(), block.num_src_nodes())


class DglLayer(nn.Module):
    """A `dgl.nn` module as a layer of an `Encoder`.

        Encoder([DglLayer(dgl.nn.GATConv(100, 32, 4, allow_zero_in_degree=True), 100, merge="concat"),
                 DglLayer(dgl.nn.SAGEConv(128, 50, "mean"), 128)])

    Its parameters are drawn as dgl draws them, by torch's global generator.

    Args:
        module: called as `module(block, values)`, values [n, D], of a block whose outputs are its first inputs; its
            result is [O, W], or [O, H, W] of H heads. It has to bear nodes without neighbours: many a module of dgl's
            refuses them unless it is told `allow_zero_in_degree=True`.
        inputs: D.
        merge: heads side by side, or their mean; None: the result has none.
        activation: between this layer and the next.
    Raises:
        ValueError: `merge` does not fit to what the module gives.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: int,
        merge: Literal["concat", "mean"] | None = None,
        activation: Callable[[Tensor], Tensor] = relu,
    ) -> None:
        super().__init__()
        self.module, self.merge, self.activation = module, merge, activation
        alone = Block(torch.tensor([0, 1]), torch.tensor([0]), 1)
        with torch.no_grad():
            self.width = self(torch.zeros(1, inputs), alone).shape[1]

    def forward(self, values: Tensor, block: Block, lanes: Lanes | None = None) -> Tensor:
        """[O, width]; `lanes` are not used, dgl has threads of its own."""
        found = self.module(to_dgl(block), values)
        if found.dim() != (2 if self.merge is None else 3):
            raise ValueError(f"the module gives {tuple(found.shape)}, which does not fit to merge={self.merge!r}")
        if self.merge is None:
            return found
        return found.flatten(1) if self.merge == "concat" else found.mean(1)


def sample_blocks(graph: Any, seeds: Tensor, fan_outs: Sequence[int], seed: int) -> tuple[Tensor, list[Block]]:
    """Blocks around nodes, drawn by `dgl.sampling.sample_neighbors` without replacement.

    The draw is a function of `seed` and of dgl's version and number of threads, and leaves dgl's generator seeded.

    Args:
        graph: a homogeneous `DGLGraph`; sampled along edges that lead to a node. Its ids are taken as int64: dgl 1.1
            returns invalid blocks for others.
        seeds: int64 [O], the innermost nodes, each once.
        fan_outs: neighbours per node, from the outermost layer to the innermost; -1: all.
    Returns:
        The nodes that are the first block's inputs, int64, and the blocks, from the outermost.
    """
    dgl = load()
    dgl.seed(seed)
    graph, nodes, blocks = graph.long(), seeds, []
    for fan_out in reversed(fan_outs):
        drawn = dgl.to_block(dgl.sampling.sample_neighbors(graph, nodes, fan_out), nodes)
        blocks.insert(0, from_dgl(drawn))
        nodes = drawn.srcdata[dgl.NID]
    return nodes, blocks
