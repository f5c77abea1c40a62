"""The training step of click-through rates: `marius_oac.types.Step` for networks over rows.

Guarantees:
- `compute` and `predict` are called by one thread; on the CPU they share their work with `threads - 1` others, which
  live until `close`.
- The result is a function of rows, data, timestamp and dense state alone: the same bits for any number of threads.
  On the CPU torch works on one thread while a batch is computed, since its own sums and products depend on how many
  there are; what is large runs on the threads of a pool.
- torch's random numbers are drawn from (seed, timestamp, rank); the process's generators are as before afterwards.
- A `compute` that raises leaves the rows it was given corrupted; the run must not go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from marius_oac.batches import ClickBatch
from marius_oac.config.ctr import CtrConfig
from marius_oac.errors import InputError
from marius_oac.models.compute.dense_optimizer import DenseOptimizer
from marius_oac.models.compute.products import PooledProducts
from marius_oac.models.compute.row_optimizers import GradientPassThrough, RowOptimizer
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.thread_pool import ThreadPool
from marius_oac.models.compute.torch_state import seeded, torch_threads
from marius_oac.models.ctr.network import KEY, Network
from marius_oac.models.ctr.rows import ArrayRows, Fields, Gathered, TableColumns
from marius_oac.models.ctr.schema import Inputs
from marius_oac.models.ctr.tensor_rows import TensorRows
from marius_oac.runtime import blas
from marius_oac.types import BatchData, DenseSync


class CtrStep:
    """One batch of examples: loss, gradient, row and dense optimizer.

    The loss is the mean binary cross-entropy plus embedding_l2 / 2 times the sum of the squares of the batch's rows
    (first-order weights too), each counted once however often it occurs.

    On the CPU the results of a network's layers lie in memory that the next batch uses again: a network that wants to
    keep one must copy it.

    Args:
        config: the run's.
        layout: what lies in each table, in the order of the rows given to `compute`.
        network: taken over: moved to the device, trained in place.
        device: a CPU or CUDA device.
        threads: on the CPU, at least 1.
        dense: how the network agrees with those of other nodes; rows then come without state, and leave with their
            gradients, the penalty's left out, in the place of their values. None: there is one node.
        rank: of this node; the others draw other random numbers.
    Raises:
        ValueError: the tables do not hold each field once.
    """

    def __init__(
        self,
        config: CtrConfig,
        layout: Sequence[TableColumns],
        network: Network,
        device: torch.device,
        threads: int,
        dense: DenseSync | None = None,
        rank: int = 0,
    ) -> None:
        self._rank, self._penalty = rank, 0.0 if dense else config.training.embedding_l2
        self._seed, self._training, self._layout, self._device = config.seed, config.training, tuple(layout), device
        self._network = network.to(device)
        self._norms = [each for each in self._network.modules() if isinstance(each, nn.BatchNorm1d)]
        self._weighted = bool(network.first_order)
        self._sequences = [sequence.name for table in layout for sequence in table.sequences]
        self._dimensions = Fields.of(layout).dimensions
        self._optimizer = GradientPassThrough() if dense else RowOptimizer(config.training.optimizer)
        self._dense = DenseOptimizer(self._network, config.training.dense_optimizer, dense)
        self._scratch = Scratch()
        self._tensor_rows = TensorRows(layout, self._weighted, self._optimizer)
        with ExitStack() as stack:
            thread_pool = ThreadPool(threads if device.type == "cpu" else 1)
            stack.callback(thread_pool.close)
            self._array_rows = ArrayRows(layout, self._weighted, thread_pool)
            self._products, self._products_kept = (
                PooledProducts(thread_pool, Scratch()),
                PooledProducts(thread_pool, None),
            )
            if device.type == "cpu":
                stack.enter_context(blas.one_thread_per_product())
            self._stack = stack.pop_all()

    @property
    def served(self) -> DenseOptimizer | None:
        """See `Step.served`."""
        return self._dense if self._dense.size else None

    def compute(self, rows: Sequence[Any], data: ClickBatch[Any], timestamp: int) -> Any:
        """See `Step.compute`.

        One example has no variance: batch norms then use their running statistics and leave them as they are.

        The learning rates of the rows and of the network are multiplied by their optimizer's `decay ** data.epoch`.

        Raises:
            ValueError: the rows are not float32 [n, D + first-order weight + state] in C order, or other than tables.
        """
        tensors = self._check(rows, self._optimizer)
        self._network.train()
        if len(data.labels) == 1:
            for norm in self._norms:
                norm.eval()
        if tensors:
            return self._compute_tensors(rows, data, timestamp)
        with torch_threads(1), self._products:
            gathered = self._array_rows.gather(rows, data.tables)
            labels = torch.from_numpy(self._own("labels", data.labels))
            numbers = torch.from_numpy(self._own("numbers", data.numbers))
            with seeded(self._masks(data, timestamp), self._device):
                loss, gradients = self._differentiate(_as_tensors(gathered), numbers, labels)
            fault = self._dense.step(data, timestamp)
        rule = self._optimizer.rule(timestamp, self._training.optimizer.decay**data.epoch)
        weight = self._penalty
        squares = self._array_rows.update(rows, _as_arrays(gradients), rule, weight)
        return loss.item() + weight / 2 * squares + float(fault)

    def _compute_tensors(
        self, rows: Sequence[torch.Tensor], data: ClickBatch[torch.Tensor], timestamp: int
    ) -> torch.Tensor:
        gathered = self._tensor_rows.gather(rows, data.tables)
        with seeded(self._masks(data, timestamp), self._device):
            loss, gradients = self._differentiate(gathered, data.numbers, data.labels)
        fault = self._dense.step(data, timestamp)
        weight = self._penalty
        factor = self._training.optimizer.decay**data.epoch
        squares = self._tensor_rows.update(rows, data.tables, gradients, timestamp, factor, weight)
        return loss + weight / 2 * squares + fault

    def predict(self, rows: Sequence[Any], data: ClickBatch[Any]) -> Any:
        """Probabilities of a click, float32 [B], in the rows' library; changes nothing.

        `rows[t]` need the value's columns only; `data` no labels.

        Raises:
            ValueError: as `compute`.
        """
        tensors = self._check(rows, None)
        self._network.eval()
        with torch.no_grad():
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
        """A copy in aligned memory: torch's products depend on where their arguments lie."""
        copy = self._scratch.take(name, *array.shape)
        copy[:] = array
        return copy

    def _masks(self, data: BatchData, timestamp: int) -> list[int]:
        """What dropout's masks are drawn from: which part of which batch it is, or this trainer and the timestamp."""
        return [self._seed, *((timestamp, self._rank) if data.part is None else data.part)]

    def _inputs(self, gathered: Gathered, numbers: torch.Tensor) -> Inputs:
        size, dimensions = numbers.shape[0], self._dimensions
        equal = len(set(dimensions)) == 1
        stacked = gathered.values.view(size, len(dimensions), dimensions[0]) if equal else None
        fields = stacked.unbind(1) if equal else gathered.values.split(dimensions, 1)
        sheets = (sheet.view(size, -1, sheet.shape[1]) for sheet in gathered.padded)
        sequences = dict(zip(self._sequences, zip(sheets, gathered.lengths, strict=True), strict=True))
        return Inputs(
            numbers=numbers, fields=fields, stacked=stacked, first_order=gathered.weights, sequences=sequences
        )

    def _logits(self, inputs: Inputs) -> torch.Tensor:
        """What the network says of a batch. Raises InputError where that is not a number for each example."""
        found, size = self._network(inputs), inputs.numbers.shape[0]
        if isinstance(found, torch.Tensor) and found.shape == (size,) and found.is_floating_point():
            return found
        what = f"{found.dtype} {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise InputError(f"forward returns {what} for {size} examples; one logit each is needed, float [{size}]", KEY)

    def _differentiate(self, gathered: Gathered, numbers: torch.Tensor, labels: torch.Tensor):
        """The loss without penalty, and the gradients by what was gathered; those by parameters lie with them."""
        leaves = gathered._replace(
            values=gathered.values.detach().requires_grad_(),
            weights=gathered.weights.detach().requires_grad_() if self._weighted else None,
            padded=tuple(sheet.detach().requires_grad_() for sheet in gathered.padded),
        )
        loss = binary_cross_entropy_with_logits(self._logits(self._inputs(leaves, numbers)), labels)
        loss.backward()
        gradients = leaves._replace(
            values=_gradient(leaves.values),
            weights=_gradient(leaves.weights) if self._weighted else None,
            padded=tuple(_gradient(sheet) for sheet in leaves.padded),
        )
        return loss.detach(), gradients

    def dense_state(self) -> Mapping[str, torch.Tensor]:
        """A copy of the network's parameters and buffers and of their optimizer's state, by name."""
        return {name: tensor.detach().clone() for name, tensor in self._dense.state().items()}

    def load_dense_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes over, by copy, what `dense_state` gave.

        Raises:
            ValueError: the state is that of another model.
        """
        self._dense.load(state)

    def close(self) -> None:
        self._stack.close()


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    """In C order; a network need not use all of its inputs."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()


def _as_tensors(gathered: Gathered) -> Gathered:
    weights = None if gathered.weights is None else torch.from_numpy(gathered.weights)
    padded, lengths = (tuple(map(torch.from_numpy, each)) for each in (gathered.padded, gathered.lengths))
    return Gathered(torch.from_numpy(gathered.values), weights, padded, lengths)


def _as_arrays(gradients: Gathered) -> Gathered:
    weights = None if gradients.weights is None else gradients.weights.numpy()
    return Gathered(gradients.values.numpy(), weights, tuple(sheet.numpy() for sheet in gradients.padded), ())
