"""Tells the processes that train from those that only serve rows (`trainers: 0` in nodes.yaml)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Crowd:
    """The processes of a group, and the run's trainers outside it (`nodes.training.rowless`), as peers of shards.

    The trainers of the group are peers 0 to `within` - 1, in the order of their ranks. Then come the processes that
    only serve, then the trainers outside. So sums over trainers have the same order as without the others.

    Attributes:
        trains: whether each process of the group trains, by rank.
        outside: number of trainers that are not in the group.
    """

    trains: Sequence[bool]
    outside: int = 0

    @property
    def within(self) -> int:
        """Number of trainers in the group."""
        return sum(self.trains)

    @property
    def trainers(self) -> int:
        """Number of all trainers."""
        return self.within + self.outside

    @property
    def own(self) -> int:
        """Number of the run's own processes; peers from that number on are elastic workers."""
        return len(self.trains) + self.outside

    @property
    def serving(self) -> list[int]:
        """Ranks of the processes that only serve."""
        return [rank for rank, trains in enumerate(self.trains) if not trains]

    def peer(self, rank: int) -> int:
        """Returns the peer number of a process of the group, from its rank."""
        before = sum(each == self.trains[rank] for each in self.trains[:rank])
        return before if self.trains[rank] else self.within + before
