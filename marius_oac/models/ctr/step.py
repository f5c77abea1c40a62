"""The training step of click-through rates: `marius_oac.types.Step` for networks over rows.

Guarantees:
- `compute` and `predict` are called by one thread; on the CPU they share their work with `threads - 1` others, which
  end at `close`. The thread that made the step calls it.
- The result is a function of rows, data, timestamp and dense state alone: the same bits for any number of threads.
  On the CPU torch uses one thread while a batch is computed, since the bits of its sums and products depend on the
  number of threads; large operations run on a pool.
- torch's random numbers are drawn from (seed, timestamp, rank); the process's generators are restored afterwards.
- If `compute` raises, the rows it was given are corrupted; the run must stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from marius_oac.batches import ClickBatch
from marius_oac.config.ctr import CtrConfig
from marius_oac.errors import InputError
from marius_oac.models.compute.device_products import products_on
from marius_oac.models.compute.multiply import multiply_of
from marius_oac.models.compute.network_parameters import NetworkParameters
from marius_oac.models.compute.products import PooledProducts
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.torch_state import compute_threads, seeded, torch_threads
from marius_oac.models.compute.update import Update, Updated
from marius_oac.models.ctr.network import KEY, Network
from marius_oac.models.ctr.rows import ArrayRows, Fields, Gathered, TableColumns
from marius_oac.models.ctr.schema import Inputs
from marius_oac.models.ctr.tensor_rows import TensorRows
from marius_oac.types import present


class CtrStep(Updated):
    """Loss, gradient, row and dense optimizer of a batch of examples.

    The loss is the mean binary cross-entropy, that of each example multiplied by its weight, plus embedding_l2 / 2
    times the sum of the squares of the batch's rows (including first-order weights), plus the network's auxiliary loss,
    if it has one. A row counts once, however often it occurs.

    On the CPU the results of a network's layers are in memory that the next batch reuses. A network that keeps a result
    must copy it.

    Args:
        config: the run's.
        layout: the features of each table, in the order of the rows given to `compute`.
        network: moved to the device and trained in place.
        device: a CPU or CUDA device.
        threads: on the CPU, at least 1.
        update: what follows from the gradients; None: that of one machine, as configured.

    Raises:
        ValueError: the tables don't have each field once.
    """

    def __init__(
        self,
        config: CtrConfig,
        layout: Sequence[TableColumns],
        network: Network,
        device: torch.device,
        threads: int,
        update: Update | None = None,
    ) -> None:
        training = config.training
        self._update = update or Update.here(training.optimizer, training.embedding_l2)
        self._seed, self._layout, self._device = config.seed, tuple(layout), device
        self._network = network.to(device)
        self._norms = [each for each in self._network.modules() if isinstance(each, nn.BatchNorm1d)]
        self._weighted = bool(network.first_order)
        self._sequences = [sequence.name for table in layout for sequence in table.sequences]
        self._dimensions = Fields.of(layout).dimensions
        self._update.own(NetworkParameters(self._network, training.dense_optimizer))
        self._update.ready()
        self._products_on = partial(products_on, device, config.compute.precision)
        self._scratch = Scratch()
        self._tensor_rows, self._stack = TensorRows(layout, self._weighted, self._update.rows), ExitStack()
        thread_pool = self._stack.enter_context(compute_threads(device, threads))
        self._array_rows = ArrayRows(layout, self._weighted, thread_pool)
        self._products = PooledProducts(thread_pool, Scratch(), multiply_of(config.compute))
        self._products_kept = PooledProducts(thread_pool, None)

    def compute(self, rows: Sequence[Any], data: ClickBatch[Any], timestamp: int) -> Any:
        """See `Step.compute`.

        A single example has no variance: batch norms then use their running statistics and don't update them.

        The learning rates of the rows and of the network are multiplied by their optimizer's `decay ** data.epoch`.

        Raises:
            ValueError: the rows are not float32 [n, D + first-order weight + state] in C order, or not one array for
                each table.
        """
        tensors = self._check(rows, self._update.rows)
        self._network.train()
        if len(data.numbers) == 1:
            for norm in self._norms:
                norm.eval()
        if tensors:
            with self._products_on():
                return self._compute_tensors(rows, data, timestamp)
        with self._products_on(), torch_threads(1), self._products:
            gathered = self._array_rows.gather(rows, data.tables)
            labels = torch.from_numpy(self._own("labels", present(data.labels)))
            weights = None if data.weights is None else torch.from_numpy(self._own("weights", data.weights))
            numbers = torch.from_numpy(self._own("numbers", data.numbers))
            with seeded(self._update.seed(self._seed, data, timestamp), self._device):
                loss, gradients = self._differentiate(_as_tensors(gathered), numbers, labels, weights)
            loss = self._update.dense(loss, data, timestamp)
        rule, weight = self._update.rows.rule(timestamp, self._update.factor(data)), self._update.penalty
        squares = self._array_rows.update(rows, _as_arrays(gradients), rule, weight)
        return loss.item() + weight / 2 * squares

    def _compute_tensors(
        self, rows: Sequence[torch.Tensor], data: ClickBatch[torch.Tensor], timestamp: int
    ) -> torch.Tensor:
        gathered = self._tensor_rows.gather(rows, data.tables)
        with seeded(self._update.seed(self._seed, data, timestamp), self._device):
            loss, gradients = self._differentiate(gathered, data.numbers, present(data.labels), data.weights)
        loss = self._update.dense(loss, data, timestamp)
        weight, factor = self._update.penalty, self._update.factor(data)
        squares = self._tensor_rows.update(rows, data.tables, gradients, timestamp, factor, weight)
        return loss + weight / 2 * squares

    def predict(self, rows: Sequence[Any], data: ClickBatch[Any]) -> Any:
        """The probabilities of a click, float32 [B], an array or a tensor as the rows. Nothing is changed.

        `rows[t]` need only the value's columns, and `data` no labels.

        Raises:
            ValueError: as `compute`.
        """
        tensors = self._check(rows, None)
        self._network.eval()
        with torch.no_grad(), products_on(self._device, "float32"):
            if tensors:
                gathered = self._tensor_rows.gather(rows, data.tables)
                return torch.sigmoid(self._logits(self._inputs(gathered, data.numbers)))
            with torch_threads(1), self._products_kept:
                gathered = _as_tensors(self._array_rows.gather(rows, data.tables, listing=False))
                numbers = torch.from_numpy(self._own("numbers", data.numbers))
                return torch.sigmoid(self._logits(self._inputs(gathered, numbers))).numpy()

    def _check(self, rows: Sequence[Any], optimizer: RowOptimizer | None) -> bool:
        """Whether the rows are tensors."""
        if len(rows) != len(self._layout):
            raise ValueError(f"rows of {len(rows)} tables, but the model has {len(self._layout)}")
        for table, values in zip(self._layout, rows, strict=True):
            value = table.dimension + self._weighted
            width = value + (optimizer.state_width(value) if optimizer else 0)
            fits = values.shape[1] == width if optimizer else values.shape[1] >= width
            if not fits:
                raise ValueError(f"rows {tuple(values.shape)} of {table.name}, but a row has {width} floats")
            if isinstance(values, np.ndarray) and not (values.dtype == np.float32 and values.flags.c_contiguous):
                raise ValueError(f"rows must be float32 in C order, not {values.dtype} with strides {values.strides}")
        return isinstance(rows[0], torch.Tensor)

    def _own(self, name: str, array: np.ndarray) -> np.ndarray:
        """A copy in aligned memory, since the bits of torch's products depend on their arguments' addresses."""
        copy = self._scratch.take(name, *array.shape)
        copy[:] = array
        return copy

    def _inputs(self, gathered: Gathered, numbers: torch.Tensor) -> Inputs:
        size, dimensions = numbers.shape[0], self._dimensions
        equal = len(set(dimensions)) == 1
        stacked = gathered.values.view(size, len(dimensions), dimensions[0]) if equal else None
        fields = gathered.values.split(dimensions, 1) if stacked is None else stacked.unbind(1)
        sheets = (sheet.view(size, -1, sheet.shape[1]) for sheet in gathered.padded)
        sequences = dict(zip(self._sequences, zip(sheets, gathered.lengths, strict=True), strict=True))
        return Inputs(
            numbers=numbers, fields=fields, stacked=stacked, first_order=gathered.weights, sequences=sequences
        )

    def _logits(self, inputs: Inputs) -> torch.Tensor:
        """The network's logits for a batch, float [B]. Raises InputError if it returns something else."""
        found, size = self._network(inputs), inputs.numbers.shape[0]
        if isinstance(found, torch.Tensor) and found.shape == (size,) and found.is_floating_point():
            return found
        what = f"{found.dtype} {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise InputError(f"forward returns {what} for {size} examples; one logit each is needed, float [{size}]", KEY)

    def _auxiliary(self) -> torch.Tensor:
        """The network's auxiliary loss, which it then has no longer. Raises InputError if it is something else."""
        found, self._network.auxiliary_loss = present(self._network.auxiliary_loss), None
        if isinstance(found, torch.Tensor) and found.shape == () and found.is_floating_point():
            return found
        what = f"{found.dtype} {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise InputError(f"forward sets auxiliary_loss to {what}; a float of no dimensions is needed", KEY)

    def _differentiate(
        self, gathered: Gathered, numbers: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, Gathered]:
        """The loss without penalty, and the gradients of the rows. Those of parameters are stored with these."""
        leaves = gathered._replace(
            values=gathered.values.detach().requires_grad_(),
            weights=gathered.weights.detach().requires_grad_() if self._weighted else None,
            padded=tuple(sheet.detach().requires_grad_() for sheet in gathered.padded),
        )
        loss = binary_cross_entropy_with_logits(self._logits(self._inputs(leaves, numbers)), labels, weights)
        loss = loss + self._auxiliary() if self._network.auxiliary_loss is not None else loss
        loss.backward()
        gradients = leaves._replace(
            values=_gradient(leaves.values),
            weights=_gradient(leaves.weights) if self._weighted else None,
            padded=tuple(_gradient(sheet) for sheet in leaves.padded),
        )
        return loss.detach(), gradients

    def close(self) -> None:
        """Ends the threads."""
        self._stack.close()


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf's gradient in C order; zeros if the network doesn't use the leaf."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()


def _as_tensors(gathered: Gathered) -> Gathered:
    weights = None if gathered.weights is None else torch.from_numpy(gathered.weights)
    padded, lengths = (tuple(map(torch.from_numpy, each)) for each in (gathered.padded, gathered.lengths))
    return Gathered(torch.from_numpy(gathered.values), weights, padded, lengths)


def _as_arrays(gradients: Gathered) -> Gathered:
    weights = None if gradients.weights is None else gradients.weights.numpy()
    return Gathered(gradients.values.numpy(), weights, tuple(sheet.numpy() for sheet in gradients.padded), ())
