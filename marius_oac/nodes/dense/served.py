"""Dense parameters on the shards, in modes that dispatch batches: the optimizer runs there.

Each shard has a slice. A pull also returns the current parameters, and a push carries their gradients. In lockstep,
before and after such a mode, gradients are all-reduced: every trainer then has all parameters and the optimizer state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.contract import Flat
from marius_oac.types import ServedDense


def bounds_of(served: ServedDense | None, shards: int) -> list[int]:
    """Returns where the slice of each shard begins, then where the last one ends."""
    if served is None:
        return [0] * (shards + 1)
    return [served.cut(served.size * each // shards) for each in range(shards + 1)]


class Served(AllReduce):
    """All-reduces in lockstep; while `dispatched` is set, gradients go to the shards that have the parameters."""

    _handed: np.ndarray | None = None

    def _prepare(self, together: Flat) -> None:
        self._together = together

    def hand_over(self, gradients: Sequence[torch.Tensor], epoch: int) -> None:
        """See `DenseSync.hand_over`."""
        parts = [each.detach().reshape(-1).cpu() for each in gradients]
        self._handed = torch.cat([*parts, torch.tensor([epoch], dtype=torch.float32)]).numpy()
        self.updated(0)

    def handed(self) -> np.ndarray | None:
        """Returns the last batch's gradients, concatenated, and their epoch, float32 [size + 1]; the next call returns
        None, as without dense parameters."""
        found, self._handed = self._handed, None
        return found

    def lay(self, values: np.ndarray) -> None:
        """Overwrites the parameters with these values, float32 [size]."""
        with torch.no_grad():
            self._together.buffer.copy_(torch.from_numpy(values))
            self._together.give(self._live)
