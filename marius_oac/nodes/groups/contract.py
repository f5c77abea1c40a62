"""What a set of nodes can do together: the contract, and how payload is counted.

Guarantees of every implementation:
- A call is collective: every member makes the same calls of a group in the same order, with tensors of the same shape
  and type. One thread of a member calls; `abort` may be called by any other.
- `all_reduce` leaves the same bits on every member, and the same bits in every run for the same members and size. The
  order of the sums is the implementation's own.
- A call that can't end any more raises: `NodeLost` where another member is gone, `Closed` where this one aborted. After
  that every call of the group does.
- Nothing is unpickled: plain values travel as JSON.

Payload counts what the algorithm hands to the network of this member's tensors and values, without headers: in a ring
an all-reduce sends 2 (N - 1) / N of the tensor and a gather N - 1 values as long as the longest; a binomial broadcast
sends one tensor to each child.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch


class Group(ABC):
    """A set of members that call each other.

    Args:
        rank: this member's number, from 0.
        names: of all members by rank, for messages.

    Attributes:
        size: members.
        bytes_sent: payload that this member has sent through this group; channels count their own.
    """

    def __init__(self, rank: int, names: Sequence[str]) -> None:
        if not 0 <= rank < len(names):
            raise ValueError(f"rank {rank} of {len(names)} members")
        self.rank, self.size, self.names = rank, len(names), tuple(names)
        self.bytes_sent = 0

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """The sum over members, in place.

        Raises:
            ValueError: the tensor is not contiguous.
        """
        _check(tensor)
        self._all_reduce(tensor)
        self.bytes_sent += ring_bytes(tensor.nbytes, self.size)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Root's tensor to every member, in place.

        Raises:
            ValueError: the tensor is not contiguous, or root is no member.
        """
        _check(tensor)
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} of {self.size} members")
        self._broadcast(tensor, root)
        self.bytes_sent += tensor.nbytes * _children((self.rank - root) % self.size, self.size)

    def gather(self, value: Any) -> list[Any]:
        """Every member's value, a plain one, by rank, as JSON gives it back (tuples as lists, keys as texts).

        Raises:
            TypeError: the value is not plain.
        """
        texts = self._gather(json.dumps(value).encode())
        self.bytes_sent += (self.size - 1) * max(map(len, texts))
        return [json.loads(text) for text in texts]

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every member has called it."""

    @abstractmethod
    def channel(self, name: str) -> Group:
        """The same members, whose calls are their own: for one background thread. Collective; closed by its user."""

    @abstractmethod
    def part(self, ranks: Sequence[int]) -> Group | None:
        """Some of the members, ascending, as a group: numbered anew, their calls their own. None for all others.

        Collective, and once for the same ranks; closed with the group. It goes on when others than its members leave
        the group.
        """

    @abstractmethod
    def abort(self, why: BaseException | None = None) -> None:
        """Makes this member's calls, waiting and later, raise `why` or `Closed`; those of the others raise `NodeLost`.

        Of a group: in its channels and parts, too. A worker of a pipeline takes `Closed` for a peaceful end; where
        nothing else tells it what is wrong, `why` must.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves the group; the others must not expect this member in a call any more. May be called again."""

    @abstractmethod
    def _all_reduce(self, tensor: torch.Tensor) -> None: ...

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, root: int) -> None: ...

    @abstractmethod
    def _gather(self, text: bytes) -> list[bytes]: ...

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        self.close()


def ring_bytes(count: int, size: int) -> int:
    """What each of `size` members sends when `count` bytes are reduced in a ring: every part travels round twice."""
    return 2 * (size - 1) * count // size


def _children(place: int, size: int) -> int:
    """To how many members the one at `place` from the root sends in a binomial tree."""
    count, step = 0, 1
    while step < size:
        if place < step and place + step < size:
            count += 1
        step *= 2
    return count


def _check(tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor {tuple(tensor.shape)} with strides {tensor.stride()} is not contiguous")
