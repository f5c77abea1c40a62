"""The data list and the token list (Su et al., section 4.1): who computes which batch, for which global step.

A state machine on one coordinator: no threads, no network, no clock. A worker asks, and gets

    Dispatch(batch, token)   it reads the parameters now, computes the batch, and pushes the gradient with the token
    WAIT                     it asks again when one of the calls below has named it
    None                     there is no batch left

A worker may `reserve` batches earlier, to prepare them: its next dispatches are those, in that order. A token is given
when the parameters are read and not before, since otherwise gradients would seem staler than they are.

| kind | token | who waits |
|---|---|---|
| gba | first step + floor(i / M) for the i-th dispatch; a lost token is given to a later dispatch | nobody |
| async, bsp | the step at which it was dispatched | nobody |
| sync | the current step, which has M slots | who finds no slot, or has had its share: ceil(M / live workers) |
| hop-bw | the same, with a slot for every live worker if these are more than M | the same |
| hop-bs | the step at which it was dispatched | who was given over b1 batches more than the slowest live one has done |

Guarantees:
- Every batch of the list is reserved or dispatched once, in order. Those of a lost worker are given to nobody else.
- Nobody waits for a lost worker. While batches remain, some live worker need not wait, or a gradient is under way that
  will end the wait.
- Memory grows with the workers and the outstanding batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple

from marius_oac.nodes.gba.modes import Mode


class Wait(Enum):
    """The type of `WAIT`."""

    WAIT = "wait"


WAIT: Final = Wait.WAIT


class Dispatch(NamedTuple):
    """A batch of the data list and its token, the global step that it is for."""

    batch: int
    token: int


class Lost(NamedTuple):
    """The batches that are lost, ascending, and the workers that may ask again."""

    batches: list[int]
    woken: list[int]


class Dispatcher:
    """Gives batches and tokens to workers.

    Args:
        mode: the rules.
        first, end: the batches of the data list, [first, end).
        step: the global step to begin with.
    """

    def __init__(self, mode: Mode, first: int, end: int, step: int = 0):
        self.mode, self.next, self.end, self.step = mode, first, end, step
        self.tokens = self.batches_lost = 0
        self._out: dict[int, dict[int, int]] = {}  # of each live worker: batch -> token
        self._reserved: dict[int, deque[int]] = {}
        self._waiting: dict[int, None] = {}  # in the order in which they asked
        self._schedule = _SCHEDULES[mode.kind](mode, step)

    def joined(self, worker: int) -> None:
        """Adds a worker, for the first time or again. `reserve` and `ask` do so, too."""
        if worker not in self._out:
            self._out[worker], self._reserved[worker] = {}, deque()
            self._schedule.workers(self._out)

    def reserve(self, worker: int) -> int | None:
        """Reserves the next batch of the list for this worker and returns it; None if none is left.

        Once none is left, the workers that `woken` returns may ask again.
        """
        self.joined(worker)
        if self.next >= self.end:
            return None
        self._reserved[worker].append(self.next)
        self.next += 1
        return self.next - 1

    def ask(self, worker: int) -> Dispatch | None | Literal[Wait.WAIT]:
        """Returns what a worker does next."""
        self.joined(worker)
        self._waiting.pop(worker, None)
        if self._is_through(worker):
            return None
        if not self._may(worker):
            self._waiting[worker] = None
            return WAIT
        if not self._reserved[worker]:
            self.reserve(worker)
        dispatch = Dispatch(self._reserved[worker].popleft(), self._schedule.dispatch(worker))
        self._out[worker][dispatch.batch] = dispatch.token
        self.tokens += 1
        return dispatch

    def done(self, worker: int, batch: int) -> list[int]:
        """Records that all shards have taken the gradient of a batch, or discarded it. Returns who may ask again.

        Raises:
            ValueError: the worker does not have this batch.
        """
        if batch not in self._out.get(worker, ()):
            raise ValueError(f"worker {worker} has no batch {batch}")
        del self._out[worker][batch]
        self._schedule.done(worker)
        return self.woken()

    def stepped(self, step: int) -> list[int]:
        """Records that all shards have applied the global steps before `step`. Returns who may ask again."""
        if step > self.step:
            self.step = step
            self._schedule.stepped(step)
        return self.woken()

    def lost(self, worker: int, torn: Collection[int] = ()) -> Lost:
        """Removes a worker that has died or left. Its batches are lost: no shard takes them any more.

        Args:
            worker: which one.
            torn: those of its batches that some shards have taken and some have not. They are lost as well, but their
                tokens count as used: the shards that lack them fill their slots.
        """
        out, reserved = self._out.pop(worker, {}), self._reserved.pop(worker, ())
        self._waiting.pop(worker, None)
        self._schedule.lost(worker, [token for batch, token in out.items() if batch not in torn])
        self._schedule.workers(self._out)
        self.batches_lost += len(out) + len(reserved)
        return Lost(sorted([*out, *reserved]), self.woken())

    def stop(self, multiple: int = 1) -> list[int]:
        """Ends the data list at the next multiple of `multiple`. Returns who may ask again, to find no batch left.

        Another dispatcher can go on from there. Where `multiple` is the parts of a global batch, it may have another
        local batch size.
        """
        self.end = min(self.end, -(-self.next // multiple) * multiple)
        return self.woken()

    def out(self, worker: int) -> dict[int, int]:
        """Returns the tokens of a worker's outstanding batches, by batch, in the order of dispatch."""
        return dict(self._out.get(worker, {}))

    def reserved(self, worker: int) -> list[int]:
        """Returns the batches that a worker has reserved and has no token for, in order."""
        return list(self._reserved.get(worker, ()))

    @property
    def outstanding(self) -> int:
        """Number of batches that are reserved or dispatched, and neither done nor lost."""
        return sum(len(each) for held in (self._out, self._reserved) for each in held.values())

    @property
    def finished(self) -> bool:
        """Whether no batch is left or outstanding: the shards may flush what does not make a whole step."""
        return self.next >= self.end and not self.outstanding

    def state(self) -> dict[str, int]:
        """Returns the state for a checkpoint; a dispatcher of any mode can load it.

        Raises:
            ValueError: batches are outstanding.
        """
        if self.outstanding:
            raise ValueError(f"{self.outstanding} batches are outstanding")
        return {"next": self.next, "step": self.step, "tokens": self.tokens, "batches_lost": self.batches_lost}

    def load(self, state: Mapping[str, int]) -> None:
        """Continues from a state; called before anything is dispatched."""
        self.next, self.step = state["next"], state["step"]
        self.tokens, self.batches_lost = state["tokens"], state["batches_lost"]
        self._schedule = _SCHEDULES[self.mode.kind](self.mode, self.step)
        self._schedule.workers(self._out)

    def woken(self) -> list[int]:
        """Returns the waiting workers that may ask again."""
        woken = [each for each in self._waiting if self._is_through(each) or self._may(each)]
        for each in woken:
            del self._waiting[each]
        return woken

    def _is_through(self, worker: int) -> bool:
        return not self._reserved[worker] and self.next >= self.end

    def _may(self, worker: int) -> bool:
        return self._schedule.may(worker, self.next >= self.end)


class _Schedule:
    """Decides when a worker goes on, and with which token. This one is that of async and bsp."""

    def __init__(self, mode: Mode, step: int):
        self._mode, self._step = mode, step

    def workers(self, live: Collection[int]) -> None:
        """Sets the live workers."""

    def may(self, worker: int, last: bool) -> bool:
        """Whether a worker goes on; `last`: all batches are reserved, so who has reserved none is through."""
        return True

    def dispatch(self, worker: int) -> int:
        """Returns the token of its next batch."""
        return self._step

    def done(self, worker: int) -> None:
        """Records that one of its batches is done."""

    def stepped(self, step: int) -> None:
        self._step = step

    def lost(self, worker: int, tokens: Collection[int]) -> None:
        """Removes a worker, whose unused tokens these are."""


class _Tokens(_Schedule):
    """gba: every value M times, ascending.

    The list is made as workers ask (Algorithm 2, lines 1 to 6), so that a lost token can be replaced: the current value
    is given once more. Otherwise tokens would run ahead of the steps, by one for every M lost ones, and stale gradients
    would count as fresh.
    """

    def __init__(self, mode: Mode, step: int):
        super().__init__(mode, step)
        self._value, self._left = step, mode.aggregate

    def dispatch(self, worker: int) -> int:
        if not self._left:
            self._value, self._left = self._value + 1, self._mode.aggregate
        self._left -= 1
        return self._value

    def lost(self, worker: int, tokens: Collection[int]) -> None:
        self._left += len(tokens)


class _Rounds(_Schedule):
    """sync, hop-bw: a step has slots, and the slot of a lost batch is free again."""

    def __init__(self, mode: Mode, step: int):
        super().__init__(mode, step)
        self._live = 0
        self._taken = 0
        self._had: dict[int, int] = {}

    def workers(self, live: Collection[int]) -> None:
        self._live = len(live)

    def may(self, worker: int, last: bool) -> bool:
        places = self._mode.aggregate
        share = -(-places // self._live)
        if self._mode.kind == "hop-bw":
            places = max(places, self._live)
        return self._taken < places and (last or self._had.get(worker, 0) < share)

    def dispatch(self, worker: int) -> int:
        self._taken += 1
        self._had[worker] = self._had.get(worker, 0) + 1
        return self._step

    def stepped(self, step: int) -> None:
        super().stepped(step)
        self._taken = 0
        self._had.clear()

    def lost(self, worker: int, tokens: Collection[int]) -> None:
        self._taken -= sum(token == self._step for token in tokens)
        self._had.pop(worker, None)


class _Clocks(_Schedule):
    """hop-bs: bounded staleness; a worker that joins begins at the clock of the slowest."""

    def __init__(self, mode: Mode, step: int):
        super().__init__(mode, step)
        self._begun: dict[int, int] = {}
        self._done: dict[int, int] = {}

    def workers(self, live: Collection[int]) -> None:
        slowest = min(self._done.values(), default=0)
        for worker in live:
            self._begun.setdefault(worker, slowest)
            self._done.setdefault(worker, slowest)

    def may(self, worker: int, last: bool) -> bool:
        return last or self._begun[worker] - min(self._done.values()) <= self._mode.bound

    def dispatch(self, worker: int) -> int:
        self._begun[worker] += 1
        return self._step

    def done(self, worker: int) -> None:
        self._done[worker] += 1

    def lost(self, worker: int, tokens: Collection[int]) -> None:
        self._begun.pop(worker, None)
        self._done.pop(worker, None)


_SCHEDULES: dict[str, type[_Schedule]] = {
    "gba": _Tokens,
    "async": _Schedule,
    "bsp": _Schedule,
    "sync": _Rounds,
    "hop-bw": _Rounds,
    "hop-bs": _Clocks,
}
