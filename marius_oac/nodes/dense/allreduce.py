"""All-reduce: sums gradients over the trainers in every iteration, so that all make the same update."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marius_oac.nodes.dense.contract import DenseAgreement, Flat
from marius_oac.types import present


class AllReduce(DenseAgreement):
    """Implements `marius_oac.types.DenseSync` with one all-reduce of all gradients before each update.

    With the trainers' parts of the global batch as shares, gradients become those of the global batch's mean loss. One
    trainer with share 1 keeps the bits of its gradients.
    """

    _flat: Flat | None = None

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
