"""What the stores of a run share: what brings their rows to where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Backing:
    """Where rows lie while no batch uses them. This class is for rows that are always at hand, as in memory.

    Otherwise `look_ahead` isn't 0, and a batch passes through these calls before it may use rows by
    `ParameterStore.held`:

        announce   in plan order, batches ahead: declares the rows that the batch will use  -> a claim
        fetch      in plan order: starts to bring them
        wait       before its rows are read: waits until they are there, where they stay
        release    after its rows are written

    Any number of threads may call any method.
    """

    look_ahead: int = 0
    """The number of batches that may be announced but not fetched yet; 0: batches need no claim."""

    def announce(self, batch_index: int, rows: Sequence[np.ndarray]) -> Any:
        """Declares that batch `batch_index` will use these rows of each table, int64 [n], ascending; returns its claim.

        Waits while too many batches are announced.

        Raises:
            ConfigError: the rows of the batch can never be at hand at once.
        """

    def fetch(self, claim: Any) -> None:
        """Starts to bring the rows of a claim. Waits while other claims leave too little room."""

    def wait(self, claim: Any) -> None:
        """Waits until the rows of a fetched claim are at hand."""

    def release(self, claim: Any) -> None:
        """Ends a claim."""

    def keep(self, references: np.ndarray) -> None:
        """Keeps what a checkpoint refers to, as it is: `SavedTable.references`, int64 [n].

        Raises:
            InputError: there is no such thing to refer to, or the checkpoint refers to it twice.
        """

    def let_go(self, references: np.ndarray) -> None:
        """Ends a `keep`."""

    def forget(self) -> None:
        """Drops all rows and references, as if nothing had ever been written. Nothing else may use the stores."""

    def abort(self) -> None:
        """Makes every call that waits, now or later, raise `Closed`."""

    def metrics(self) -> dict[str, float]:
        """Traffic so far, by the names of a run's metrics."""
        return {}


IN_MEMORY = Backing()
