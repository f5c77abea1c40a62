"""What modules of one table have in common: settings of its rows, and what an engine gives to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from marius_oac.config.sections import StorageConfig
from marius_oac.torch.announced import Announced
from marius_oac.torch.at_hand import Rows
from marius_oac.torch.key_forms import KeyArray, Keys
from marius_oac.torch.left import Left
from marius_oac.torch.tables import IN_MEMORY, Table
from marius_oac.types import present


class Reader(Protocol):
    """The engine, as modules see it."""

    def wait_until_written(self) -> None:
        """Waits until all batches that were handed back are in the store."""


@dataclass(frozen=True, eq=False)
class Peeked:
    """Rows of a batch that is looked at and not trained.

    Attributes:
        values: of its different keys, float32 [m, dimension].
        local: of each of its n keys the place in `values`, int64 [n].
        announced: tensors of its keys, of batch 0.
    """

    values: torch.Tensor
    local: torch.Tensor
    announced: Announced

    def find(self, keys: Keys) -> torch.Tensor | None:
        """The place of each key in `values`, int64 [n]; None: they are not a tensor of the batch."""
        place = self.announced.of(keys, 0)
        return None if place is None else self.local[place]


@dataclass(eq=False)
class Served:
    """A table, as its modules and their engine see it.

    Attributes:
        dimension, std, seed, capacity: of its rows; see `Keyed`.
        storage: where they lie.
        first_rows: float32 [n, dimension], of keys 0 to n - 1, until there is a table; None: drawn as all others.
        table: made by the first engine.
        engine: that serves the modules now.
        rows: those of the batch at hand.
        announced: tensors of its keys.
        peeked: rows that modules give in their place.
        left: gradients of batches that were handed back, until the next batch has them; None: there are none.
    """

    dimension: int
    std: float
    seed: int
    capacity: int | None
    storage: StorageConfig = IN_MEMORY
    first_rows: torch.Tensor | None = None
    table: Table | None = None
    engine: Reader | None = None
    rows: Rows | None = None
    announced: Announced = field(default_factory=Announced)
    peeked: Peeked | None = None
    left: Left | None = None

    def read(self, keys: KeyArray) -> tuple[np.ndarray, np.ndarray]:
        """`Table.look_up`, with what steps have made of the rows of the batch at hand."""
        values, local = present(self.table).look_up(keys)
        if self.rows is not None and self.rows.stepped:
            self.rows.put_newest(keys, values, local)
        return values, local

    def clear(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the batch at hand and of those before, as `zero_grad` does."""
        self.left = None
        if self.rows is not None:
            self.rows.clear(set_to_none)
