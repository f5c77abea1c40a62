"""The step of a trainer that computes virtual parts: one after the other, each from the rows before the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.models.compute.soundness import is_sound
from marius_oac.nodes.parts.batch import OnePart, PartedBatch, block_sums
from marius_oac.nodes.parts.norms import RunningStatistics
from marius_oac.types import Step


class PartedStep:
    """Wraps a `types.Step` that replaces rows by their gradients. Other attributes are the step's own.

    Args:
        step: of one part.
        begin: called before a batch with the numbers of the parts that the step then computes.
        statistics: of the step's batch norms.
    """

    def __init__(self, step: Step, begin: Callable[[Sequence[int]], object], statistics: RunningStatistics):
        self._step, self._begin, self._statistics = step, begin, statistics

    def compute(self, rows: Sequence[np.ndarray], data: PartedBatch, timestamp: int) -> float:
        """See `Step.compute`. One block's sums replace the rows; those of several are left in `data.sums`."""
        self._begin([part.number for part in data.own])
        self._statistics.begin()
        alone = data.alone  # then the rows pulled are the part's
        loss = self._compute(rows, data.own[0], timestamp) if alone else self._compute_parts(rows, data, timestamp)
        self._statistics.fold()
        return loss

    def _compute(self, rows: Sequence[np.ndarray], part: OnePart, timestamp: int) -> float:
        loss: float = self._step.compute(rows, part.data, timestamp)
        self._statistics.computed(part.number, part.data.share > 0)
        return loss

    def _compute_parts(self, rows: Sequence[np.ndarray], data: PartedBatch, timestamp: int) -> float:
        found, losses, weights = [], [], []
        for part in data.own:
            values = [kernels.spread(table, index) for table, index in zip(rows, part.index, strict=True)]
            losses.append(self._compute(values, part, timestamp))
            weights.append(part.data.share)
            found.append(values)
        total = sum(weights)
        loss = sum(map(math.prod, zip(losses, weights, strict=True))) / total if total else losses[0]
        if not total:  # an example of another trainer's
            return loss
        sound = [bool(is_sound(each, each.shape[1], math.inf)) for values in found for each in values]
        sums = block_sums(data, found, [table.shape for table in rows])
        if len(sums) == 1:
            for table, (_, gradients) in zip(rows, sums[0].tables, strict=True):
                table[:] = gradients
        else:
            data.sums.extend(sums)
        return loss if all(sound) else math.nan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
