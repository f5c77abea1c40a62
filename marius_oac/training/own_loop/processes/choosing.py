"""Whether an engine is for this process alone or shares its rows with others."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from marius_oac.errors import InputError, shown
from marius_oac.training.own_loop.processes.placing import ALONE, Share


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
