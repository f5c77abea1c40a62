"""Relations as dense parameters that several nodes agree on.

Every node has all relations. A batch's gradients are written to a table of zeros. `DenseSync.reduce` sums these tables
over the nodes, and every node updates the relations that have a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from marius_oac.batches import EdgeBatch
from marius_oac.models.compute.dense_moments import OWN
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.scratch import Scratch
from marius_oac.types import DenseSync, present


class ReplicatedRelations:
    """The table of relations on one of several nodes. It is also a `types.ServedDense`, whose slices are relations.

    Args:
        table: float32 [R, Dr + state], updated in place; None for a decoder without relations.
        width: Dr.
        optimizer: of the rows, unless `dense` provides one.
        dense: how the nodes agree.
    """

    def __init__(self, table: torch.Tensor | None, width: int, optimizer: RowOptimizer, dense: DenseSync) -> None:
        self._table, self._width, self._optimizer, self._dense = table, width, optimizer, dense
        self._scratch, self._rate = Scratch(), 0.0
        self._own: torch.optim.Optimizer | None = None
        self.grain, self.size = max(width, 1), 0 if table is None else len(table) * width
        if table is not None:
            self._values = table[:, :width]
            self._gradients = table.new_zeros(len(table), width)
            self._own = dense.optimizer([self._values])
            self._rate = self._own.param_groups[0]["lr"] if self._own else 0.0
            dense.attach([self._values])

    def state(self) -> dict[str, torch.Tensor]:
        """The state of the optimizer that `dense` provides, by name: the tensors themselves, not copies."""
        return {} if self._own is None else {f"{OWN}{key}": each for key, each in self._own.state[self._values].items()}

    def values(self, data: EdgeBatch[np.ndarray]) -> np.ndarray | None:
        """float32 [R, Dr], a copy in which only the rows of the batch's relations are set."""
        if self._table is None:
            return None
        copy, picks = self._scratch.take("values", len(self._table), self._width), data.relation_rows
        copy[picks] = self._values.numpy()[picks]
        return copy

    def update(self, handed: np.ndarray | None, data: EdgeBatch[np.ndarray], timestamp: int, factor: Any) -> None:
        """Updates the relations; `handed` is the array of `values`, with the values replaced by gradients."""
        if handed is not None:
            picks = present(data.relation_rows)
            self.update_tensor(torch.from_numpy(handed[picks]), torch.from_numpy(picks), data.share, timestamp, factor)

    def update_tensor(
        self, gradients: torch.Tensor, picks: torch.Tensor, share: float, timestamp: int, factor: Any
    ) -> None:
        """Updates the relations.

        Args:
            gradients: float32 [m, Dr] of the batch's relations.
            picks: int64 [m], the ids of these relations.
            share: the batch's part of the global batch.
            timestamp: of the batch.
            factor: multiplies the learning rate.
        """
        every = self._gradients.zero_()
        every[picks] = gradients
        if self._dense.dispatched:
            self._dense.hand_over([every], float(factor))
            return
        moves = self._dense.reduce([every], share)
        if self._own is not None:
            self._values.grad = every
            self._own.param_groups[0]["lr"] = self._rate * float(factor)
            self._own.step()
        elif moves:
            _update_touched(present(self._table), every, self._optimizer, timestamp, factor)
        self._dense.updated(timestamp)

    def slice(self, first: int, end: int) -> RelationSlice:
        """See `ServedDense.slice`."""
        table = present(self._table)[first // self.grain : end // self.grain].cpu().clone()
        return RelationSlice(table, self._width, self._optimizer)

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """See `ServedDense.take`."""
        table = present(self._table)
        table.copy_(torch.from_numpy(np.concatenate(states)).view(table.shape))


class RelationSlice:
    """A `types.DenseSlice`: a table of some relations, float32 [r, Dr + state], which it owns."""

    def __init__(self, table: torch.Tensor, width: int, optimizer: RowOptimizer) -> None:
        self._table, self._width, self._optimizer = table, width, optimizer

    def values(self) -> np.ndarray:
        """See `DenseSlice.values`."""
        return self._table[:, : self._width].reshape(-1).numpy()

    def apply(self, gradient: np.ndarray, timestamp: int, factor: float) -> None:
        """See `DenseSlice.apply`."""
        gradients = torch.from_numpy(gradient).view(len(self._table), self._width)
        _update_touched(self._table, gradients, self._optimizer, timestamp, factor)

    def state(self) -> np.ndarray:
        """See `DenseSlice.state`: the table's rows."""
        return self._table.reshape(-1).numpy().copy()


def _update_touched(
    table: torch.Tensor, gradients: torch.Tensor, optimizer: RowOptimizer, timestamp: int, factor: Any
) -> None:
    """One step of the optimizer on the rows that have a gradient."""
    touched = gradients.any(1)
    if table.device.type != "cpu":
        update_without_waiting(table, gradients, touched, optimizer, timestamp, factor)
        return
    picks = touched.nonzero().reshape(-1)
    rows = table[picks]
    optimizer.update(rows.numpy(), gradients[picks].numpy(), timestamp, factor)
    table[picks] = rows


def update_without_waiting(
    table: torch.Tensor,
    gradients: torch.Tensor,
    touched: torch.Tensor,
    optimizer: RowOptimizer,
    timestamp: int,
    factor: Any,
) -> None:
    """One step of the optimizer on the rows of `table` where `touched`, bool [R], is true; gradients are [R, Dr].

    All rows are computed, and only the touched ones are kept. To select them first, the host would have to wait for the
    device to know their number.
    """
    rows = table.clone()
    optimizer.update(rows, gradients, timestamp, factor)
    table.copy_(torch.where(touched[:, None], rows, table))
