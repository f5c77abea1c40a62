"""Which process has the row of a key: as over nodes, by a hash of the key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_oac.nodes.shards.placement import Placement, node_of_keys


class Share(NamedTuple):
    """The part of all keys that one process has.

    Attributes:
        rank, size: of the process in its group, and of the group.
    """

    rank: int = 0
    size: int = 1

    @property
    def placement(self) -> Placement:
        """The process of each virtual shard."""
        return Placement.by_number(self.size)

    def holds(self, vocabularies: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Whether each key, of vocabularies, uint16 [n], and numbers, int64 [n], is in this part: bool [n]."""
        return node_of_keys(self.placement, vocabularies, keys) == self.rank


ALONE = Share()
"""All keys."""
