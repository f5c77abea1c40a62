"""All-reduce: gradients are summed over the trainers in every iteration, so that all make the same update."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.flat import Flat


class AllReduce(DenseAgreement):
    """`marius_oac.types.DenseSync`: one all-reduce of all gradients together before each update.

    With shares that are the trainers' parts of the global batch, gradients become those of the global batch's mean. One
    trainer with share 1 keeps the bits of its gradients.
    """

    _flat: Flat | None = None

    def reduce(self, gradients: Sequence[torch.Tensor], share: float) -> bool:
        """See `DenseSync.reduce`; gradients have the same shapes in every call.

        Raises:
            ValueError: they have not.
        """
        if self._flat is None:
            self._flat = Flat(gradients)
        begun, self._quiet = self._begin(), False
        with torch.no_grad():
            self._flat.fill(gradients)
            self._flat.buffer.mul_(share)
            self._channel.all_reduce(self._flat.buffer)
            self._flat.give(gradients)
        self._count(begun)
        return True
