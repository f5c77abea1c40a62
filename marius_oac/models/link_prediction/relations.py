"""The table of relations: dense parameters, which every trainer has.

On one machine a batch's relations are updated in one pass with their gradients. Among several trainers a batch's
gradients are written to a table of zeros; `DenseSync.reduce` sums these tables, and every trainer updates the relations
that have a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marius_oac.batches import EdgeBatch
from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.dense_moments import OWN, RELATIONS, relations_from_kstep, relations_to_kstep
from marius_oac.models.compute.row_optimizers import GradientPassThrough, RowOptimizer
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.soundness import LARGEST_VALUE, is_sound
from marius_oac.models.compute.summed import Parts
from marius_oac.models.link_prediction.handwritten import Relations
from marius_oac.types import present


class RelationTable:
    """An `update.DenseGroup`: the relations with their optimizer's state.

    Attributes:
        width: Dr.

    Args:
        values: float32 [R, Dr], the initial values; copied.
        config: of the optimizer.
        device: of the table.
        at_once: updates the relations of a batch in one pass with their gradients, rather than in `apply`.
    """

    weight_decay = 0.0
    norms: Sequence[torch.nn.Module] = ()

    def __init__(self, values: np.ndarray, config: OptimizerConfig, device: torch.device, at_once: bool) -> None:
        self._optimizer = RowOptimizer(config, config.relation_learning_rate)
        self._config, self.width, self._at_once = config, values.shape[1], at_once
        table = torch.empty(len(values), self.width + self._optimizer.state_width(self.width))
        table[:, : self.width] = torch.from_numpy(values)
        table[:, self.width :] = self._optimizer.initial_state
        self._table = table.to(device)
        self._values = self._table[:, : self.width]
        self._values.grad = None if at_once else self._table.new_zeros(self._values.shape)
        self.parameters: Sequence[torch.Tensor] = [] if at_once else [self._values]
        self.size = 0 if at_once else self._values.numel()
        self.rate, self.decay = config.relation_learning_rate or config.learning_rate, config.decay
        self._scratch = Scratch()
        self._own_state: dict[str, torch.Tensor] = {}

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """See `DenseGroup.adopt`."""
        self._own_state = optimizer.state[self._values]

    def opened(self, data: EdgeBatch[np.ndarray], timestamp: int) -> Relations:
        """What the handwritten gradient reads and updates: the table, or a copy whose values become gradients."""
        if self._at_once:
            rule = self._optimizer.rule(timestamp, self.decay**data.epoch)
            return Relations(self._table.numpy(), rule)
        copy, picks = self._scratch.take("values", *self._values.shape), data.relation_rows
        copy[picks] = self._values.numpy()[picks]
        return Relations(copy, GradientPassThrough().rule(timestamp))

    def closed(self, opened: Relations, data: EdgeBatch[np.ndarray]) -> float:
        """Takes in what the handwritten gradient has made of `opened`.

        Returns:
            0, or NaN if the batch's relations, or their gradients, are not sound, to be added to the batch's loss.
        """
        picks, largest = present(data.relation_rows), LARGEST_VALUE
        found = present(opened.table)[picks]
        if not self._at_once:
            largest = math.inf
            self._accumulate(torch.from_numpy(found), torch.from_numpy(picks))
        return 0.0 if is_sound(found, self.width, largest) else math.nan

    def picked(self, data: EdgeBatch[torch.Tensor]) -> torch.Tensor:
        """A copy of the rows of the batch's relations, float32 [m, Dr + state]."""
        return self._table[present(data.relation_rows)]

    def take_gradients(
        self, rows: torch.Tensor, gradients: torch.Tensor, data: EdgeBatch[torch.Tensor], timestamp: int
    ) -> torch.Tensor:
        """Takes in the gradients of the batch's relations, float32 [m, Dr]; `rows` are what `picked` gave.

        Returns:
            Whether they, or the updated relations, are sound, a 0-d tensor.
        """
        picks = present(data.relation_rows)
        if not self._at_once:
            self._accumulate(gradients, picks)
            return is_sound(gradients, self.width, math.inf)
        self._optimizer.update(rows, gradients, timestamp, self.decay**data.epoch)
        self._table[picks] = rows
        return is_sound(rows, self.width, LARGEST_VALUE)

    @property
    def table(self) -> torch.Tensor:
        """All relations with their state, float32 [R, Dr + state]; not to be changed."""
        return self._table

    def take_parts(self, parts: Parts, data: EdgeBatch[torch.Tensor], timestamp: int, told: torch.Tensor) -> None:
        """As `take_gradients`, of gradients that are not summed up; the first number of `told` becomes NaN if not all
        is sound."""
        picks = present(data.relation_rows)
        if self._at_once:
            factor = self.decay**data.epoch
            self._optimizer.update_parts(self._table, parts, timestamp, factor, picks, told, LARGEST_VALUE)
        else:
            gradients = present(self._values.grad).zero_()
            GradientPassThrough().update_parts(gradients, parts, timestamp, 1.0, picks, told)

    def _accumulate(self, gradients: torch.Tensor, picks: torch.Tensor) -> None:
        present(self._values.grad).zero_()[picks] = gradients

    def gradients(self) -> list[torch.Tensor]:
        """See `DenseGroup.gradients`; zeros for relations that the batch doesn't have."""
        return [present(self._values.grad)]

    def sound_gradients(self) -> list[torch.Tensor]:
        """None: `closed` and `take_gradients` look at the batch's relations alone."""
        return []

    def sound_values(self) -> list[torch.Tensor]:
        """None, as `sound_gradients`."""
        return []

    def apply(self, timestamp: int, epoch: int) -> None:
        """See `DenseGroup.apply`; updates the relations that have a gradient."""
        _update_touched(self._table, present(self._values.grad), self._optimizer, timestamp, self.decay**epoch)

    def clear(self) -> None:
        """Nothing: the next batch's gradients replace these."""

    def state(self) -> dict[str, torch.Tensor]:
        """See `DenseGroup.state`."""
        return {RELATIONS: self._table} | {f"{OWN}{key}": each for key, each in self._own_state.items()}

    def to_kstep(self, state: Mapping[str, torch.Tensor], epsilon: float, batches: int) -> Mapping[str, torch.Tensor]:
        """See `DenseGroup.to_kstep`."""
        return relations_to_kstep(state, self.width, self._betas, epsilon, batches)

    def from_kstep(self, state: Mapping[str, torch.Tensor], batches: int) -> Mapping[str, torch.Tensor]:
        """See `DenseGroup.from_kstep`."""
        return relations_from_kstep(state, self.width, self._betas, batches)

    @property
    def _betas(self) -> tuple[float, float]:
        return self._config.beta1, self._config.beta2

    def cut(self, position: int) -> int:
        """See `DenseGroup.cut`: a slice consists of whole relations."""
        return position // self.width * self.width

    def slice(self, first: int, end: int) -> RelationSlice:
        """See `ServedDense.slice`."""
        table = self._table[first // self.width : end // self.width].cpu().clone()
        return RelationSlice(table, self.width, self._optimizer, self.decay)

    def slice_floats(self, first: int, end: int) -> int:
        """See `DenseGroup.slice_floats`."""
        return (end - first) // self.width * self._table.shape[1]

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """See `ServedDense.take`."""
        self._table.copy_(torch.from_numpy(np.concatenate(states)).view(self._table.shape))


class RelationSlice:
    """A `types.DenseSlice`: a table of some relations, float32 [r, Dr + state], which it owns."""

    def __init__(self, table: torch.Tensor, width: int, optimizer: RowOptimizer, decay: float) -> None:
        self._table, self._width, self._optimizer, self._decay = table, width, optimizer, decay

    def values(self) -> np.ndarray:
        """See `DenseSlice.values`."""
        return self._table[:, : self._width].reshape(-1).numpy()

    def apply(self, gradient: np.ndarray, timestamp: int, epoch: int) -> None:
        """See `DenseSlice.apply`."""
        gradients = torch.from_numpy(gradient).view(len(self._table), self._width)
        _update_touched(self._table, gradients, self._optimizer, timestamp, self._decay**epoch)

    def state(self) -> np.ndarray:
        """See `DenseSlice.state`: the table's rows."""
        return self._table.reshape(-1).numpy().copy()


def _update_touched(
    table: torch.Tensor, gradients: torch.Tensor, optimizer: RowOptimizer, timestamp: int, factor: Any
) -> None:
    """One step of the optimizer on the rows that have a gradient."""
    if table.device.type != "cpu":
        update_without_waiting(table, gradients, gradients.any(1), optimizer, timestamp, factor)
        return
    # NumPy's, since torch would index in threads that wait for each other longer than the indexing takes.
    rows, found = table.numpy(), gradients.numpy()
    picks = np.flatnonzero(found.any(1))
    chosen = rows[picks]
    optimizer.update(chosen, found[picks], timestamp, factor)
    rows[picks] = chosen


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
