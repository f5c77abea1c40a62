"""A `Group` of threads of one process, for tests.

Guarantees:
- Sums are made in rank order.
- A call raises `NodeLost` with the name of a member that has left or aborted, or that has not come within `timeout`.
- Calls of different groups and channels do not wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from marius_oac.errors import NodeLost
from marius_oac.nodes.groups.contract import Group
from marius_oac.runtime.channel import Closed

Delay = Callable[[int, str, int], object]
"""Called with the rank, the channel ("" is the group itself) and the number of a call before a member takes part."""


class ThreadGroup(Group):
    """A member that is a thread. Made by `members`, `channel` and `part` only."""

    def __init__(self, rank: int, rendezvous: _Rendezvous) -> None:
        super().__init__(rank, rendezvous.names)
        self._rendezvous, self._calls = rendezvous, 0

    @classmethod
    def members(
        cls, size: int, timeout: float = 30.0, delay: Delay | None = None, names: Sequence[str] | None = None
    ) -> list[ThreadGroup]:
        """Returns one member for each of `size` threads.

        Args:
            size: number of members.
            timeout: seconds after which a member that doesn't come to a call is lost.
            delay: see `Delay`; it may block.
            names: of the members; None: "rank 0", ...
        """
        rendezvous = _Rendezvous(names or [f"rank {each}" for each in range(size)], "", timeout, delay)
        return [cls(rank, rendezvous) for rank in range(size)]

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        parts = self._meet("all_reduce", tensor.clone(), (tensor.shape, tensor.dtype))
        tensor.copy_(parts[0])
        for part in parts[1:]:
            tensor += part

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        parts = self._meet("broadcast", tensor.clone(), (tensor.shape, tensor.dtype, root))
        tensor.copy_(parts[root])

    def _all_to_all(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> None:
        every = self._meet("all_to_all", [each.clone() for each in sent])
        for tensor, theirs in zip(received, every, strict=True):
            tensor.copy_(theirs[self.rank])

    def _gather(self, text: bytes) -> list[bytes]:
        return self._meet("gather", text)

    def barrier(self) -> None:
        """See `Group.barrier`."""
        self._meet("barrier", None)

    def channel(self, name: str) -> ThreadGroup:
        """See `Group.channel`."""
        self._meet("channel", None, name)
        return ThreadGroup(self.rank, self._rendezvous.inner(self._calls, name))

    def part(self, ranks: Sequence[int]) -> ThreadGroup | None:
        """See `Group.part`."""
        self._meet("part", None, tuple(ranks))
        if self.rank not in ranks:
            return None
        return ThreadGroup(ranks.index(self.rank), self._rendezvous.inner(self._calls, "part", ranks))

    def _meet(self, kind: str, given: Any, must_agree: Any = None) -> list[Any]:
        self._calls += 1
        return self._rendezvous.meet(self.rank, self._calls, given, (kind, must_agree))

    def abort(self, why: BaseException | None = None) -> None:
        """See `Group.abort`."""
        self._rendezvous.leave(self.rank, "has aborted", why)

    def close(self) -> None:
        """See `Group.close`."""
        self._rendezvous.leave(self.rank, "has left the group")


class _Rendezvous:
    """Exchanges values between members: each call collects one of every member, and is complete when all have come."""

    def __init__(self, names: Sequence[str], name: str, timeout: float, delay: Delay | None) -> None:
        self.names = tuple(names)
        self._name, self._timeout, self._delay = name, timeout, delay
        self._changed = threading.Condition()
        self._brought: dict[int, dict[int, tuple[Any, Any]]] = {}
        self._taken: dict[int, int] = {}
        self._gone: dict[int, str] = {}
        self._errors: dict[int, BaseException] = {}
        self._inner: dict[int, tuple[_Rendezvous, Sequence[int]]] = {}  # by call, with the ranks of its members

    def meet(self, rank: int, call: int, given: Any, must_agree: Any) -> list[Any]:
        """Waits for all members, and returns what each has given to a call, by rank."""
        if self._delay is not None:
            self._delay(rank, self._name, call)
        with self._changed:
            brought = self._brought.setdefault(call, {})
            if rank not in self._gone:
                brought[rank] = given, must_agree
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._complete(call) or self._lost(call) or rank in self._gone, self._timeout
            )
            if rank in self._gone:
                raise self._errors.get(rank) or Closed(self._name)
            if not self._complete(call):
                raise self._lost(call) or self._late(call)
            self._taken[call] = self._taken.get(call, 0) + 1
            if self._taken[call] == len(self.names):
                del self._brought[call], self._taken[call]
        theirs = [brought[each][1] for each in range(len(self.names))]
        if theirs.count(must_agree) != len(theirs):
            raise ValueError(f"call {call} of '{self._name}': members called {theirs}")
        return [brought[each][0] for each in range(len(self.names))]

    def inner(self, call: int, name: str, ranks: Sequence[int] | None = None) -> _Rendezvous:
        """Returns the rendezvous of the channel or subgroup that a call makes."""
        ranks = range(len(self.names)) if ranks is None else ranks
        with self._changed:
            made = _Rendezvous([self.names[rank] for rank in ranks], name, self._timeout, self._delay)
            return self._inner.setdefault(call, (made, ranks))[0]

    def leave(self, rank: int, why: str, error: BaseException | None = None) -> None:
        """Ends the member's calls, with the error or `Closed`, here and in inner rendezvous."""
        with self._changed:
            if error is not None:
                self._errors.setdefault(rank, error)
            self._gone.setdefault(rank, why)
            for call, brought in self._brought.items():
                if not self._complete(call):
                    brought.pop(rank, None)
            self._changed.notify_all()
            inner = list(self._inner.values())
        for each, ranks in inner:
            if rank in ranks:
                each.leave(ranks.index(rank), why, error)

    def _complete(self, call: int) -> bool:
        return len(self._brought.get(call, ())) == len(self.names)

    def _lost(self, call: int) -> NodeLost | None:
        gone = [rank for rank in self._gone if rank not in self._brought[call]]
        return NodeLost(self.names[gone[0]], self._gone[gone[0]]) if gone else None

    def _late(self, call: int) -> NodeLost:
        late = [name for rank, name in enumerate(self.names) if rank not in self._brought[call]]
        return NodeLost(", ".join(late), f"has not come to exchange {call} within {self._timeout:g} s")
