"""Where a batch of a click log lies, for what is said of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.errors import InputError


@dataclass(frozen=True)
class Place:
    """A file, and the number in it, from 0, of each of a batch's rows, int64 [n]; a header line is no row."""

    path: Path
    rows: np.ndarray

    def wrong(self, index: int, message: str) -> InputError:
        """An error of the batch's row `index`, which the message counts from 1."""
        return InputError(f"row {self.rows[index] + 1}: {message}", self.path)
