"""The training step of encoded nodes: an encoder, and a head, which is itself a step over encoded nodes.

Guarantees:
- `compute` is called by one thread; on the CPU it runs its work on the head's pool.
- The result is a function of rows, data, timestamp and dense state alone: the same bits for any number of threads.
  On the CPU torch uses one thread while a batch is computed, and large operations run on the pool.
- Dropout's masks are drawn from `Update.seed`; torch's generators are restored afterwards.
- If `compute` raises, the rows it was given and the dense parameters are corrupted; the run must stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from marius_oac.batches import EncodedBatch
from marius_oac.config.sections import ComputeConfig, DenseOptimizerConfig
from marius_oac.models.compute.device_products import products_on
from marius_oac.models.compute.multiply import multiply_of
from marius_oac.models.compute.network_parameters import NetworkParameters
from marius_oac.models.compute.products import PooledProducts
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.tiles import blocks
from marius_oac.models.compute.torch_state import seeded, torch_threads
from marius_oac.models.compute.update import Update, Updated
from marius_oac.models.compute.user_code import blaming_frames
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.encoder import Encoder
from marius_oac.models.gnn.layers import Means
from marius_oac.runtime.thread_pool import Shared, ThreadPool
from marius_oac.types import map_arrays, present

_DEFAULT = ComputeConfig()
_BLOCK_ROWS = 4096


class Head(Protocol):
    """A step over encoded nodes, whose own dense parameters the encoder's step updates with the encoder's.

    Attributes:
        thread_pool: which the encoder uses too, until the head is closed.
    """

    thread_pool: ThreadPool

    def compute(self, rows: Sequence[Any], data: Any, timestamp: int) -> Any:
        """Replaces the nodes' values, `rows[0]`, by the gradient of its loss, which it returns as `Step.compute`."""

    def close(self) -> None:
        """Ends its threads."""


class EncodedStep(Updated):
    """A `types.Step` for batches of encoded nodes.

    Args:
        encoder: moved to the device and trained in place.
        head: made with `update.below()`; closed with this step.
        dimension: D, floats of value in a node's row; 0: nodes have no rows, and `compute` gets none.
        dense: configures the encoder's optimizer.
        update: what follows from the gradients of rows and parameters.
        seed: of the run.
        device: the head's.
        own: files of the user that layers come from. Their results are in memory that is not reused, and their errors
            name file and line.
        compute: says how the products of layers are made.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
        dimension: int,
        dense: DenseOptimizerConfig,
        update: Update,
        seed: int,
        device: torch.device,
        own: Sequence[Path] = (),
        compute: ComputeConfig = _DEFAULT,
    ) -> None:
        self._own, self.encoder, self.head = tuple(own), encoder.to(device), head
        self._dimension, self._seed, self._device, self._update = dimension, seed, device, update
        update.own(NetworkParameters(self.encoder, dense))
        update.ready()
        self._products = PooledProducts(head.thread_pool, None if own else Scratch(), multiply_of(compute))
        self._products_on = partial(products_on, device, compute.precision)
        self._scratch = Scratch()

    def compute(self, rows: Sequence[Any], data: EncodedBatch[Any], timestamp: int) -> Any:
        """See `Step.compute`; `rows[0]` are the nodes' rows, float32 [n, D + state], if nodes have rows.

        Raises:
            ConfigError: a user's layer failed.
        """
        tensors = isinstance(data.first, Tensor)
        with blaming_frames(self._own, "encoder.layers"):
            return (self._compute_tensors if tensors else self._compute_arrays)(rows, data, timestamp)

    def _compute_arrays(self, rows: Sequence[Any], data: EncodedBatch[np.ndarray], timestamp: int) -> float:
        tensors = map_arrays(data, torch.from_numpy)
        values = torch.from_numpy(rows[0][:, : self._dimension]) if rows else None
        # Our layers use the pool themselves; for others the mode intercepts each operation of torch.
        with self._products_on(), torch_threads(1), self._products if self._own else nullcontext():
            self._products.start()
            leaf, encoded = self._encode(values, tensors, timestamp, self._products)
            handed = self._scratch.take("encoded", *encoded.shape)
            handed[:] = encoded.detach().numpy()
            loss = self.head.compute([handed], data.head, timestamp)
            if encoded.requires_grad:  # not if a user's layer has no parameters and nodes no rows
                encoded.backward(torch.from_numpy(handed))
        with torch_threads(1):  # outside of the mode, which would intercept its many small operations
            loss = self._update.dense(loss, data, timestamp)
        if leaf is not None:
            self._update_rows(rows[0], data, present(leaf.grad).numpy(), timestamp)
        return loss

    def _compute_tensors(self, rows: Sequence[Tensor], data: EncodedBatch[Tensor], timestamp: int) -> Tensor:
        values = rows[0][:, : self._dimension] if rows else None
        with self._products_on():
            leaf, encoded = self._encode(values, data, timestamp, None)
        handed = encoded.detach().clone()
        loss = self.head.compute([handed], data.head, timestamp)
        if encoded.requires_grad:
            with self._products_on():
                encoded.backward(handed)
        loss = self._update.dense(loss, data, timestamp)
        if leaf is not None and values is not None:
            gradients = torch.empty_like(values)
            gradients[present(data.inputs)] = present(leaf.grad)[:, : self._dimension]
            self._update.rows.update(rows[0], gradients, timestamp, self._update.factor(data))
        return loss

    def _encode(
        self, values: Tensor | None, data: EncodedBatch[Tensor], timestamp: int, thread_pool: Shared | None
    ) -> tuple[Tensor | None, Tensor]:
        """The encoder's input, whose first D columns are the rows' values, if there are rows; and its output."""
        leaf = None
        if values is not None:
            own = values.index_select(0, present(data.inputs))
            leaf = (own if data.features is None else torch.cat((own, data.features), 1)).requires_grad_()
        means = None if data.means is None else Means(data.features, data.means)
        self.encoder.train()
        with torch.enable_grad(), seeded(self._update.seed(self._seed, data, timestamp), self._device):
            given = leaf if leaf is not None else means or data.features
            return leaf, self.encoder(given, blocks_of(data), thread_pool)

    def _update_rows(
        self, rows: np.ndarray, data: EncodedBatch[np.ndarray], gradients: np.ndarray, timestamp: int
    ) -> None:
        own, factor = self._scratch.take("gradients", len(rows), self._dimension), self._update.factor(data)

        def update(begin: int, end: int) -> None:
            self._update.rows.update(rows[begin:end], own[begin:end], timestamp, factor)

        own[present(data.inputs)] = gradients[:, : self._dimension]
        self.head.thread_pool.run([partial(update, *cut) for cut in blocks(0, len(rows), _BLOCK_ROWS)])

    def close(self) -> None:
        """Closes the head."""
        self.head.close()


def blocks_of(data: EncodedBatch[Tensor]) -> list[Block]:
    """The blocks of a batch, one for each layer without means."""
    found, num_inputs = [], len(data.first)
    for block in data.blocks:
        found.append(Block(block.offsets, block.sources, num_inputs))
        num_inputs = found[-1].num_outputs
    return found
