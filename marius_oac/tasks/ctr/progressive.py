"""A step that predicts each batch before it trains on it, for `training.progressive_by: batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from marius_oac.batches import ClickBatch
from marius_oac.evaluation.progressive import ProgressiveMetrics
from marius_oac.models.ctr.step import CtrStep
from marius_oac.types import present

_KEPT = 64  # batches whose predictions wait on a device, which the step waits for when it takes them over


class PredictingStep(CtrStep):
    """Predicts with the parameters that the batch finds, as an evaluation would: what is trained has the same bits."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._metrics, self._waiting = ProgressiveMetrics(), list[torch.Tensor]()

    def compute(self, rows: Sequence[Any], data: ClickBatch[Any], timestamp: int) -> Any:
        """See `CtrStep.compute`."""
        if data.share:  # else the example is another trainer's
            labels, probabilities = present(data.labels), self.predict(rows, data)
            if isinstance(probabilities, torch.Tensor):
                self._waiting.append(torch.stack((labels, probabilities)))
                if len(self._waiting) == _KEPT:
                    self._take_over()
            else:
                self._metrics.add(labels, probabilities)
        return super().compute(rows, data, timestamp)

    def predicted(self) -> list[Any]:
        """What was predicted since the last call; see `ProgressiveMetrics.taken`."""
        self._take_over()
        return self._metrics.taken()

    def _take_over(self) -> None:
        if self._waiting:
            self._metrics.add(*torch.cat(self._waiting, 1).cpu().numpy())
            self._waiting.clear()
