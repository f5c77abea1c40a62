"""The interface to dgl, an extra of this package (`pip install '/path/to/marius_oac[dgl]'`). Only `data.dgl` needs it.

It converts blocks, and makes a `dgl.nn` module a layer of an `Encoder`. See `dgl.sampling` for dgl's sampler, and
`dgl.graphs` and `dgl.csv_folders` for its graphs.

A module of dgl may sum in an order that depends on dgl's version and number of threads. Bitwise reproducibility is
guaranteed only for our own layers.
"""

from __future__ import annotations

import importlib
import os
import platform
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

from marius_oac.errors import InputError, how_to_install
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.layers import Layer
from marius_oac.runtime.thread_pool import ThreadPool

_LOCK = threading.Lock()
_FIRST: list[ThreadPoolExecutor] = []


def load() -> ModuleType:
    """Imports dgl, and claims its first stream of random numbers for `first_thread`, unless dgl has drawn already.

    Raises:
        InputError: dgl is not installed or can't be imported; says what to install.
    """
    found = sys.modules.get("dgl")
    if found is not None and _FIRST:
        return found
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else dgl looks for a file in the user's home
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dgl 1.1 uses functions that its dependencies have since deprecated
            dgl = importlib.import_module("dgl")
    except ImportError as error:
        why = f"it has no wheels for Python 3.12 and newer, and this is {platform.python_version()}; with 3.11"
        raise InputError(f"can't be imported ({error}); {why}: {how_to_install('dgl')}", "dgl") from None
    with _LOCK:
        if not _FIRST:
            thread = ThreadPoolExecutor(1, "dgl")
            thread.submit(_claim, dgl).result()
            _FIRST.append(thread)  # only now may others draw
    return dgl


def first_thread() -> ThreadPoolExecutor:
    """The thread whose random numbers from dgl depend only on the seed.

    dgl numbers the threads of a process in the order in which they first draw or are seeded, and adds a thread's number
    to its seed. This thread is the first.
    """
    load()
    return _FIRST[0]


def _claim(dgl: ModuleType) -> None:
    dgl.utils.set_num_threads(1)  # of this thread alone
    dgl.seed(0)


def to_dgl(block: Block) -> Any:
    """The block as a `DGLBlock` with int64 ids."""
    edges = torch.arange(block.num_edges, device=block.sources.device)
    arrays = ("csc", (block.offsets, block.sources, edges))
    return load().create_block(arrays, num_src_nodes=block.num_inputs, num_dst_nodes=block.num_outputs)


def from_dgl(block: Any) -> Block:
    """A `DGLBlock` with one type of nodes and edges as a `Block`.

    Its output nodes must be its first input nodes, as `dgl.to_block` and dgl's samplers make them.
    """
    offsets, sources, _ = block.adj_tensors("csc")
    return Block(offsets.long(), sources.long(), block.num_src_nodes())


class DglLayer(Layer):
    """A `dgl.nn` module as a layer of an `Encoder`.

        Encoder([DglLayer(dgl.nn.GATConv(100, 32, 4, allow_zero_in_degree=True), 100, merge="concat"),
                 DglLayer(dgl.nn.SAGEConv(128, 50, "mean"), 128)])

    dgl initialises its parameters from torch's global generator.

    Args:
        module: called as `module(block, values)`, values float32 [n, D]. It returns [O, W], or [O, H, W] for H heads.
            It must accept nodes without neighbours; many modules of dgl need `allow_zero_in_degree=True` for that.
        inputs: D.
        merge: concatenate the heads ("concat") or average them ("mean"); None: there are no heads.
        activation: between this layer and the next.

    Raises:
        ValueError: `merge` does not match the shape of the module's result.
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
        """The module's result, [O, width], for values [n, D]. `thread_pool` is unused, since dgl has its own threads.

        Raises:
            ValueError: as the constructor.
        """
        found = self.module(to_dgl(block), values)
        if found.dim() != (2 if self.merge is None else 3):
            raise ValueError(f"the module gives {tuple(found.shape)}, which does not fit to merge={self.merge!r}")
        if self.merge is None:
            return found
        return found.flatten(1) if self.merge == "concat" else found.mean(1)
