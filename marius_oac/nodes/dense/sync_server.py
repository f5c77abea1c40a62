"""Sync servers of EASGD: they hold w_ps, the copy of the dense parameters that every replica moves towards.

The caller assigns tensors to servers. Those of one server form one vector.

Guarantees:
- An exchange is atomic at its server: w_ps moves once, and the answer is w_ps right after that.
- Exchanges with different servers do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class SyncServers(Protocol):
    """A client of all sync servers; may be used by several threads."""

    def write(self, server: int, values: torch.Tensor) -> None:
        """Sets w_ps of a server to these values, [length]."""

    def read(self, server: int) -> torch.Tensor:
        """Returns a copy of w_ps of a server, [length]."""

    def exchange(self, server: int, values: torch.Tensor) -> torch.Tensor:
        """Moves w_ps of a server towards the values, [length], by alpha; returns a copy of it."""

    def abort(self) -> None:
        """Makes waiting and later calls of this trainer raise `Closed`."""


class SyncServer:
    """One server's w_ps, without threads or network (Zheng et al., Algorithm 2, the first line of the loop).

    Args:
        alpha: the elastic parameter: w_ps = (1 - alpha) w_ps + alpha w_i.
    """

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._values: torch.Tensor | None = None

    def write(self, values: torch.Tensor) -> None:
        """See `SyncServers`."""
        self._values = values.clone()

    def read(self) -> torch.Tensor:
        """See `SyncServers`.

        Raises:
            ValueError: nothing was written yet.
        """
        if self._values is None:
            raise ValueError("the sync server has no parameters yet")
        return self._values.clone()

    def exchange(self, values: torch.Tensor) -> torch.Tensor:
        """See `SyncServers`.

        Raises:
            ValueError: the values have another shape or dtype than w_ps.
        """
        mine = self.read()
        if (values.shape, values.dtype) != (mine.shape, mine.dtype):
            raise ValueError(f"{values.dtype} {tuple(values.shape)}, but w_ps is {mine.dtype} {tuple(mine.shape)}")
        self._values = mine.lerp_(values, self._alpha)
        return self.read()


def parts_of(assignment: Sequence[int]) -> dict[int, list[int]]:
    """Returns the indices of the tensors on each server, ascending, from the server of each tensor."""
    return {server: [n for n, each in enumerate(assignment) if each == server] for server in sorted(set(assignment))}
