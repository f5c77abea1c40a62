"""Which members of a group are neighbours: they are connected, and watch each other.

Up to `MESH` members are all neighbours. More form a circulant graph: the neighbours of member r are r - 2^k and
r + 2^k, modulo the number of members, as the fingers of Chord (Stoica et al., SIGCOMM 2001) but in both directions. So
1,000 members have 18 neighbours each, and a message takes at most 6 steps from one to any other.

- A circulant graph with the jumps 1, 2, 4, ... stays connected when fewer members are gone than each has neighbours
  (Boesch and Felzer, Networks 1972).
- Neighbours have neighbours in common: between r and r + 2^k there are r + 2^(k-1), r - 2^k and r + 2^(k+1).
"""

from __future__ import annotations

from collections.abc import Collection

MESH = 16


def jumps(size: int) -> list[int]:
    """Returns the distances to neighbours, upwards, in ascending order."""
    if size <= MESH:
        return list(range(1, size // 2 + 1))
    return [1 << power for power in range(size.bit_length()) if 2 << power <= size]


def neighbours(rank: int, size: int) -> set[int]:
    """Returns the ranks of a member's neighbours."""
    return {(rank + sign * jump) % size for jump in jumps(size) for sign in (1, -1)}


def next_after(rank: int, jump: int, size: int, gone: Collection[int]) -> int:
    """Returns the member that is `jump` further than `rank` in the ring of those that are not gone; it may be `rank`
    itself."""
    ring = [(rank + each) % size for each in range(size) if (rank + each) % size not in gone]
    return ring[jump % len(ring)]
