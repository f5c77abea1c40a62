"""The part of every batch that one of several trainers computes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marius_oac.types import Planner


@dataclass(frozen=True)
class RankSlice:
    """Trainer number `rank` of `count`: consecutive examples, as many as the others' give or take one.

    Attributes:
        dispatched: whether only some batches are asked for, whichever are dispatched to a trainer: each is then read by
            itself.
    """

    rank: int = 0
    count: int = 1
    dispatched: bool = False

    def of_batch(self, size: int) -> tuple[int, int, float]:
        """Returns the first example, the end, and the part of the batch that they are.

        In a batch with fewer examples than trainers, a trainer without any takes an example of another's with a part of
        0, so that every trainer has a batch to compute. It updates nothing, and its example is not counted.
        """
        first, end = size * self.rank // self.count, size * (self.rank + 1) // self.count
        if first == end:
            first = min(first, size - 1)
            return first, first + 1, 0.0
        return first, end, (end - first) / size

    def of_batches(self, examples: int, batch_size: int) -> np.ndarray:
        """Returns which of `examples` examples, cut into batches, are its own: int64 [k], ascending."""
        starts = range(0, examples, batch_size)
        parts = [self.of_batch(min(batch_size, examples - start)) for start in starts]
        return np.concatenate([np.arange(first, end) + at for at, (first, end, _) in zip(starts, parts, strict=True)])


WHOLE = RankSlice()


class SlicedPlanner(Planner, Protocol):
    """A planner of one process's part of every batch.

    Attributes:
        share: the part; may be set before the first `plan`.
    """

    share: RankSlice


def with_share(planner: SlicedPlanner, rank: int, count: int) -> SlicedPlanner:
    """A copy of a planner for the parts of the same batches that are dispatched to trainer `rank` of `count`."""
    other = copy.copy(planner)
    other.share = RankSlice(rank, count, dispatched=True)
    return other
