"""The part of every batch that one of several trainers computes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marius_oac.types import Planner


@dataclass(frozen=True)
class RankSlice:
    """The slice of trainer `rank` of `count`: consecutive examples, whose number differs between trainers by at most 1.

    Attributes:
        rank, count: of the trainer, and the number of trainers.
        dispatched: whether only the batches that are dispatched to this trainer are planned; each is then read
            separately.
    """

    rank: int = 0
    count: int = 1
    dispatched: bool = False

    def of_batch(self, size: int) -> tuple[int, int, float]:
        """The first example, the end, and the fraction of the batch.

        If a batch has fewer examples than there are trainers, a trainer without examples gets one of another trainer
        with fraction 0, so that it has a batch to compute. That example updates nothing and is not counted.
        """
        first, end = size * self.rank // self.count, size * (self.rank + 1) // self.count
        if first == end:
            first = min(first, size - 1)
            return first, first + 1, 0.0
        return first, end, (end - first) / size

    def of_batches(self, examples: int, batch_size: int) -> np.ndarray:
        """The indices of this trainer's examples, int64 [k], ascending, of so many examples in batches."""
        starts = range(0, examples, batch_size)
        parts = [self.of_batch(min(batch_size, examples - start)) for start in starts]
        return np.concatenate([np.arange(first, end) + at for at, (first, end, _) in zip(starts, parts, strict=True)])


WHOLE = RankSlice()


class SlicedPlanner(Planner, Protocol):
    """A planner of one process's part of every batch.

    Attributes:
        share: the part; see `with_share`.
    """

    share: RankSlice


def with_share(planner: SlicedPlanner, share: RankSlice) -> SlicedPlanner:
    """A copy of the planner that plans this part of every batch."""
    other = copy.copy(planner)
    other.share = share
    return other
