"""Gradients that a batch leaves; see `unstepped`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_oac.torch.key_forms import KeyArray, joined


@dataclass(frozen=True, eq=False)
class Left:
    """The gradients of a table's rows that are left.

    Attributes:
        first: number of the first batch that has left some.
        batches: how many have.
        keys: of c rows; none where there is a `reason`.
        gradients: float32 [c, dimension].
        used: whether the model has looked up each row, bool [c].
        reason: why nothing may be added to them; None: it may.
    """

    first: int
    batches: int
    keys: KeyArray
    gradients: np.ndarray
    used: np.ndarray
    reason: str | None = None

    @classmethod
    def refused(cls, reason: str) -> Left:
        """Gradients to which nothing may be added, for this reason."""
        return cls(0, 0, joined([]), np.empty((0, 0), np.float32), np.empty(0, np.bool_), reason)
