"""The part of every batch that one of several trainers computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Trainer number `rank` of `count`: consecutive examples, as many as the others' give or take one."""

    rank: int = 0
    count: int = 1

    def of_batch(self, size: int) -> tuple[int, int, float]:
        """First example, end, and what part of the batch that is.

        Of a batch with fewer examples than trainers, those who would have none take one of the others' that counts
        for nothing: so everyone has a batch to compute.
        """
        first, end = size * self.rank // self.count, size * (self.rank + 1) // self.count
        if first == end:
            first = min(first, size - 1)
            return first, first + 1, 0.0
        return first, end, (end - first) / size


WHOLE = Share()
