"""Which processes of a run train, and which only serve rows: `trainers: 0` of nodes.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Crowd:
    """The processes of a group, and those outside of it (`training.rowless`).

    To shards the trainers of the group are peers 0 to `within` - 1, in the order of their ranks; then come those that
    only serve, and then those outside: so sums over trainers have the order that they would have without the others.

    Attributes:
        trains: of each process of the group, by rank.
        outside: trainers that are not in the group.
    """

    trains: Sequence[bool]
    outside: int = 0

    @property
    def within(self) -> int:
        """Trainers of the group."""
        return sum(self.trains)

    @property
    def trainers(self) -> int:
        """All of them."""
        return self.within + self.outside

    @property
    def own(self) -> int:
        """The run's own processes; peers from that number on are elastic workers."""
        return len(self.trains) + self.outside

    @property
    def serving(self) -> list[int]:
        """Ranks of the processes that only serve."""
        return [rank for rank, trains in enumerate(self.trains) if not trains]

    def peer(self, rank: int) -> int:
        """The number that a process of the group has to shards."""
        before = sum(each == self.trains[rank] for each in self.trains[:rank])
        return before if self.trains[rank] else self.within + before
