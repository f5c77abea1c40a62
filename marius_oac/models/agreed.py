"""Relations as dense parameters that several nodes agree on.

Every node has all of them. A batch's gradients are laid into a table of zeros; `DenseSync.reduce` adds those tables up
over the nodes, and every node updates the relations that have a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from marius_oac.models.optimizers import RowOptimizer
from marius_oac.models.scratch import Scratch
from marius_oac.types import DenseSync

OWN = "relations.optimizer."
"""Begins the names of the state of an optimizer that the agreement brings along."""


class AgreedRelations:
    """Args:
    table: float32 [R, Dr + state], updated in place; None for a decoder without relations.
    width: Dr.
    optimizer: of the rows, unless `dense` brings one of its own.
    """

    def __init__(self, table: torch.Tensor | None, width: int, optimizer: RowOptimizer, dense: DenseSync) -> None:
        self._table, self._width, self._optimizer, self._dense = table, width, optimizer, dense
        self._scratch, self._own = Scratch(), None
        if table is not None:
            self._values = table[:, :width]
            self._gradients = table.new_zeros(len(table), width)
            self._own = dense.optimizer([self._values])
            dense.attach([self._values])

    def state(self) -> dict[str, torch.Tensor]:
        """What an optimizer of `dense` keeps, by name: the tensors themselves, not copies."""
        return {} if self._own is None else {f"{OWN}{key}": each for key, each in self._own.state[self._values].items()}

    def values(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """float32 [R, Dr], a copy in which only the batch's relations have their values."""
        if self._table is None:
            return None
        copy, picks = self._scratch.take("values", len(self._table), self._width), arrays["relation_rows"]
        copy[picks] = self._values.numpy()[picks]
        return copy

    def update(self, handed: np.ndarray | None, arrays: Mapping[str, np.ndarray], timestamp: int, factor: Any) -> None:
        """Takes what `values` gave, with the gradients of the batch's relations in the place of their values."""
        if handed is not None:
            gradients = torch.from_numpy(handed[arrays["relation_rows"]])
            self.update_tensor(gradients, torch.from_numpy(arrays["relation_rows"]), arrays["share"], timestamp, factor)

    def update_tensor(
        self, gradients: torch.Tensor, picks: torch.Tensor, share: Any, timestamp: int, factor: Any
    ) -> None:
        """`gradients` [m, Dr] of the relations `picks`, int64 [m]; `share` is the batch's part of the global batch."""
        every = self._gradients.zero_()
        every[picks] = gradients
        self._dense.reduce([every], float(share.item()))
        if self._own is not None:
            self._values.grad = every
            self._own.step()
        else:
            touched = every.any(1).nonzero().reshape(-1)
            rows, summed = self._table[touched], every[touched]
            if rows.device.type == "cpu":
                self._optimizer.update(rows.numpy(), summed.numpy(), timestamp, factor)
            else:
                self._optimizer.update(rows, summed, timestamp, factor)
            self._table[touched] = rows
        self._dense.updated(timestamp)
