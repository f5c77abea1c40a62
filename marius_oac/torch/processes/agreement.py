"""What all processes of a group agree on: calls that each of them makes alike, in the same order, from its user's
thread.

Guarantees:
- They have connections of their own (gloo, whatever the user's backend), so that no collective of the user's comes
  between.
- A process that makes another call than the others ends all of them with one line that says who is where.
- A process that is gone, or does not come within the group's timeout, ends the others. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from marius_oac.errors import InputError, NodeLost, shown

_MADE: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
"""How many agreements the processes of a group have made."""
_ROOM = 1 << 10  # bytes of a message that needs no second round


class Agreement:
    """The processes of a group of torch's; made by all of them together.

    Attributes:
        rank, size: of this process in the group, and of the group.
        timeout: seconds that a call waits for the others: the group's.
    """

    def __init__(self, group: dist.ProcessGroup):
        ranks = dist.get_process_group_ranks(group)
        self.rank, self.size = dist.get_rank(group), len(ranks)
        silence = _timeout(group)
        self.timeout = silence.total_seconds()
        number = _MADE[group] = _MADE.get(group, 0) + 1
        # Not by `new_group`: its names count the groups of a process, which may be others than those of another one.
        store = dist.PrefixStore(f"marius_oac/{number}", _get_process_group_store(group))
        self._group: Any = dist.ProcessGroupGloo(store, self.rank, self.size, silence)

    def gather(self, call: str, value: Any = None) -> list[Any]:
        """Every process's value, by rank, as JSON returns it.

        Args:
            call: what this process does, for a line such as "rank 1 CALL"; the same on all.

        Raises:
            InputError: others do something else.
            NodeLost: one of them is gone, or has not come within the timeout.
        """
        own = json.dumps([call, value]).encode()
        try:
            texts = self._gather(own)
        except RuntimeError as error:
            why = f"is gone, or has not come within {self.timeout:g} s to where rank {self.rank} {call}"
            raise NodeLost("of another rank", why) from error
        found = [json.loads(text) for text in texts]
        if len({other for other, _ in found}) > 1:
            said = "; ".join(f"rank {rank} {other}" for rank, (other, _) in enumerate(found))
            raise InputError(f"the processes are not at the same place: {said}", "Engine")
        return [each for _, each in found]

    def _gather(self, own: bytes) -> list[bytes]:
        texts = self._all(len(own).to_bytes(8, "little") + own, _ROOM)
        lengths = [int.from_bytes(text[:8], "little") for text in texts]
        if max(lengths) > _ROOM - 8:
            texts = self._all(bytes(8) + own, 8 + max(lengths))
        return [text[8 : 8 + length] for text, length in zip(texts, lengths, strict=True)]

    def _all(self, own: bytes, room: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(own[:room].ljust(room)), dtype=torch.uint8)
        texts = [torch.empty(room, dtype=torch.uint8) for _ in range(self.size)]
        self._group.allgather([texts], [mine]).wait()
        return [each.numpy().tobytes() for each in texts]

    def close(self) -> None:
        """Leaves; no call follows."""
        self._group = None


def check_same(every: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError if a value differs between processes, by rank; the line has the first one that does."""
    for rank, other in enumerate(every):
        for name, value in every[0].items():
            if other[name] != value:
                there = f"{shown(value)} on rank 0 and {shown(other[name])} on rank {rank}"
                raise InputError(f"{name} must be the same in all processes: it is {there}", "Engine")


def _timeout(group: dist.ProcessGroup) -> timedelta:
    """How long the group's collectives wait."""
    for device in ("cpu", "cuda"):
        try:
            options = group._get_backend(torch.device(device)).options
        except RuntimeError:
            continue
        if hasattr(options, "_timeout"):
            found: timedelta = options._timeout
            return found
    return timedelta(minutes=30)
