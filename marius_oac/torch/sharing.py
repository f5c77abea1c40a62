"""Which process has the row of a key: as over nodes, by a hash of the key; or all are in one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from marius_oac.errors import InputError, shown
from marius_oac.storage.placement import FEWEST_SHARDS, Placement, node_of_keys


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
        return Placement.by_number(self.size, FEWEST_SHARDS)  # part of the format of checkpoints

    def holds(self, vocabularies: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Whether each key, of vocabularies, uint16 [n], and numbers, int64 [n], is in this part: bool [n]."""
        return node_of_keys(self.placement, vocabularies, keys) == self.rank


ALONE = Share()
"""All keys."""


def share_of(group: Any) -> Share:
    """The part of all keys that this process has in an engine of a group.

    Raises:
        InputError: it is no group that this process is in, or none although there are other processes.
    """
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if group is None:
        if several:
            raise InputError(
                f"it is one of {dist.get_world_size()} processes: share the rows among them by "
                "group=torch.distributed.group.WORLD, or give a group of this process alone", "Engine: group"
            )  # fmt: skip
        return ALONE
    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise InputError("a group of torch.distributed that this process is in, such as "
                         f"torch.distributed.group.WORLD, not {shown(group)}", "Engine: group")  # fmt: skip
    return Share(dist.get_rank(group), dist.get_world_size(group))
