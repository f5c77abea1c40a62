"""Dense parameters of trainers to which batches are dispatched: they lie on the shards, whose optimizer runs there.

Each shard has a slice. A pull brings the parameters of that moment along, a push takes the gradients. In lockstep,
before and after that, gradients are all-reduced: every trainer then has all parameters, and the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.flat import Flat
from marius_oac.types import ServedDense


def bounds_of(served: ServedDense | None, shards: int) -> list[int]:
    """Where slices begin, and the last one ends."""
    if served is None:
        return [0] * (shards + 1)
    grains = served.size // served.grain
    return [grains * each // shards * served.grain for each in range(shards + 1)]


class Served(AllReduce):
    """`marius_oac.types.DenseSync` in lockstep; while `dispatched` is set, of parameters that are served."""

    _handed: np.ndarray | None = None

    def _prepare(self, together: Flat) -> None:
        self._together = together

    def hand_over(self, gradients: Sequence[torch.Tensor], factor: float) -> None:
        """See `DenseSync.hand_over`."""
        parts = [each.detach().reshape(-1).cpu() for each in gradients]
        self._handed = torch.cat([*parts, torch.tensor([factor])]).numpy()
        self.updated(0)

    def handed(self) -> np.ndarray | None:
        """The last batch's gradients, end to end, and their factor: float32 [size + 1], once; None: there are none."""
        found, self._handed = self._handed, None
        return found

    def lay(self, values: np.ndarray) -> None:
        """From now on the parameters are these, float32 [size]."""
        with torch.no_grad():
            self._together.buffer.copy_(torch.from_numpy(values))
            self._together.give(self._live)
