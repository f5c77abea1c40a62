"""All-reduce: sums gradients over the trainers in every iteration, so that all make the same update.

In modes that dispatch batches the dense parameters are on the shards, and the optimizer runs there: each shard has a
slice, a pull also returns the current parameters, and a push carries their gradients. In lockstep, before and after
such a mode, gradients are all-reduced: every trainer then has all parameters and the optimizer state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from marius_oac.nodes.dense.contract import DenseAgreement, Flat
from marius_oac.types import ServedDense, present


def bounds_of(served: ServedDense | None, shards: int) -> list[int]:
    """Returns where the slice of each shard begins, then where the last one ends."""
    if served is None:
        return [0] * (shards + 1)
    return [served.cut(served.size * each // shards) for each in range(shards + 1)]


class AllReduce(DenseAgreement):
    """Implements `marius_oac.types.DenseSync` with one all-reduce of all gradients before each update.

    With the trainers' parts of the global batch as shares, gradients become those of the global batch's mean loss. One
    trainer with share 1 keeps the bits of its gradients. While `dispatched` is set, gradients go to the shards instead.
    """

    _flat: Flat | None = None
    _handed: np.ndarray | None = None

    def _prepare(self, together: Flat) -> None:
        self._together = together

    def reduce(self, gradients: Sequence[torch.Tensor], share: float) -> bool:
        """See `DenseSync.reduce`.

        Raises:
            ValueError: the gradients have other shapes than in the first call.
        """
        if self._flat is None:
            self._flat = Flat(gradients)
        begun, self._quiet = self._begin(), False
        with torch.no_grad():
            self._flat.fill(gradients)
            self._flat.buffer.mul_(share)
            present(self._channel).all_reduce(self._flat.buffer)
            self._flat.give(gradients)
        self._count(begun)
        return True

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
