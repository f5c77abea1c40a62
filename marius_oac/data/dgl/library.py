"""The bridge to dgl, an extra of this package (`pip install 'marius-oac[dgl]'`): nothing else here needs it.

Blocks to dgl's and back, and a `dgl.nn` module as a layer of an `Encoder`. See `dgl.sampling` for its sampler, and
`dgl.graphs` and `dgl.csv_folders` for its graphs.

A module of dgl adds up in an order that may depend on dgl's version and number of threads: what is promised of bits
holds for our own layers.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from marius_oac.errors import InputError
from marius_oac.models.compute.thread_pool import ThreadPool
from marius_oac.models.gnn.block import Block

_LOCK = threading.Lock()
_FIRST: list[ThreadPoolExecutor] = []


def load() -> ModuleType:
    """The module dgl, whose first stream of random numbers `first_thread` has, unless dgl has drawn some already.

    Raises:
        InputError: it is not installed, or does not work here; says what to install.
    """
    found = sys.modules.get("dgl")
    if found is not None and _FIRST:
        return found
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else dgl asks in a file of the user's home
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dgl 1.1 uses what its dependencies have since deprecated
            dgl = importlib.import_module("dgl")
    except ImportError as error:
        raise InputError(
            f"can't be imported ({error}); on Python up to 3.11: pip install 'marius-oac[dgl]'", "dgl"
        ) from None
    with _LOCK:
        if not _FIRST:
            thread = ThreadPoolExecutor(1, "dgl")
            thread.submit(_claim, dgl).result()
            _FIRST.append(thread)  # only now may others draw
    return dgl


def first_thread() -> ThreadPoolExecutor:
    """The thread whose random numbers from dgl are a function of the seed alone; dgl has no other thread there.

    dgl numbers the threads of a process as they first draw or are seeded, and a thread's number is part of its seed.
    """
    load()
    return _FIRST[0]


def _claim(dgl: ModuleType) -> None:
    dgl.utils.set_num_threads(1)  # of this thread alone
    dgl.seed(0)


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

    def forward(self, values: Tensor, block: Block, thread_pool: ThreadPool | None = None) -> Tensor:
        """[O, width]; `thread_pool` are not used, dgl has threads of its own."""
        found = self.module(to_dgl(block), values)
        if found.dim() != (2 if self.merge is None else 3):
            raise ValueError(f"the module gives {tuple(found.shape)}, which does not fit to merge={self.merge!r}")
        if self.merge is None:
            return found
        return found.flatten(1) if self.merge == "concat" else found.mean(1)
