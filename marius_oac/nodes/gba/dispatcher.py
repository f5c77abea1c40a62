"""The data list and the token list (Su et al., section 4.1): who computes which batch, and which global step it is for.

A state machine on one coordinator: no threads, no network, no clock. A worker asks, and gets

    Dispatch(batch, token)   it reads the parameters now, computes the batch, and pushes the gradient with the token
    WAIT                 it asks again when one of the calls below has named it
    None                 there is no batch left

It may `reserve` batches before, to prepare them: the next dispatches are those, in that order. A token is given at the
last moment, when parameters are read, else gradients would seem older than they are.

| kind | token | who waits |
|---|---|---|
| gba | first step + floor(i / M) for the i-th dispatch; a later one gets the place of a lost one in the list | nobody |
| async, bsp | the step at which it was dispatched | nobody |
| sync | the current step, which has M places | who finds no place, or has had its share: ceil(M / live workers) |
| hop-bw | the same, with a place for every live worker if these are more than M | the same |
| hop-bs | the step at which it was dispatched | who has had over b1 batches more than the slowest live one has done |

Guarantees:
- Every batch of the list is reserved or dispatched once, in order. Those of a worker that is lost are dispatched to
  nobody else.
- Nobody waits for a worker that is lost. While batches remain, some live worker is not told to wait, or a gradient is
  on its way that will end the waiting.
- Memory grows with the workers and the batches that are out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple

from marius_oac.nodes.gba.modes import Mode


class Wait(Enum):
    """The answer `WAIT`."""

    WAIT = "wait"


WAIT: Final = Wait.WAIT


class Dispatch(NamedTuple):
    """A batch of the data list, and the global step that it is for."""

    batch: int
    token: int


class Lost(NamedTuple):
    """The batches that have vanished, ascending, and the workers that may ask again."""

    batches: list[int]
    woken: list[int]


class Dispatcher:
    """Args:
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
        self._speed_monitor = _PACES[mode.kind](mode, step)

    def joined(self, worker: int) -> None:
        """A worker is here, for the first time or again. One that asks has joined."""
        if worker not in self._out:
            self._out[worker], self._reserved[worker] = {}, deque()
            self._speed_monitor.workers(self._out)

    def reserve(self, worker: int) -> int | None:
        """The next batch of the list, which is this worker's from now on; None: there is none left.

        Once there is none left, those whom `woken` names may ask again.
        """
        self.joined(worker)
        if self.next >= self.end:
            return None
        self._reserved[worker].append(self.next)
        self.next += 1
        return self.next - 1

    def ask(self, worker: int) -> Dispatch | None | Literal[Wait.WAIT]:
        """What a worker does next."""
        self.joined(worker)
        self._waiting.pop(worker, None)
        if self._is_through(worker):
            return None
        if not self._may(worker):
            self._waiting[worker] = None
            return WAIT
        if not self._reserved[worker]:
            self.reserve(worker)
        dispatch = Dispatch(self._reserved[worker].popleft(), self._speed_monitor.dispatch(worker))
        self._out[worker][dispatch.batch] = dispatch.token
        self.tokens += 1
        return dispatch

    def done(self, worker: int, batch: int) -> list[int]:
        """All shards have taken the worker's gradient of a batch, or let it vanish. Returns who may ask again.

        Raises:
            ValueError: the worker does not have this batch.
        """
        if batch not in self._out.get(worker, ()):
            raise ValueError(f"worker {worker} has no batch {batch}")
        del self._out[worker][batch]
        self._speed_monitor.done(worker)
        return self.woken()

    def stepped(self, step: int) -> list[int]:
        """All shards have applied the global steps before `step`. Returns who may ask again."""
        if step > self.step:
            self.step = step
            self._speed_monitor.stepped(step)
        return self.woken()

    def lost(self, worker: int, torn: Collection[int] = ()) -> Lost:
        """A worker has died, or has left: what it has in its hands vanishes, and no shard will take it any more.

        Args:
            worker: which one.
            torn: those of its batches that some shards have taken and some have not. Their places are filled with
                nothing there, so their tokens are used, but they are lost as well.
        """
        out, reserved = self._out.pop(worker, {}), self._reserved.pop(worker, ())
        self._waiting.pop(worker, None)
        self._speed_monitor.lost(worker, [token for batch, token in out.items() if batch not in torn])
        self._speed_monitor.workers(self._out)
        self.batches_lost += len(out) + len(reserved)
        return Lost(sorted([*out, *reserved]), self.woken())

    def stop(self, multiple: int = 1) -> list[int]:
        """Dispatches no batch from the next multiple of `multiple` on, where another dispatcher goes on: with M, which
        makes a global batch, one of any local batch size. Returns who may ask again, to hear of it.
        """
        self.end = min(self.end, -(-self.next // multiple) * multiple)
        return self.woken()

    def out(self, worker: int) -> dict[int, int]:
        """The tokens of the batches that a worker has, by batch, in the order of dispatch."""
        return dict(self._out.get(worker, {}))

    def reserved(self, worker: int) -> list[int]:
        """The batches that a worker has reserved, and has no token for, in order."""
        return list(self._reserved.get(worker, ()))

    @property
    def outstanding(self) -> int:
        """Batches that are reserved or dispatched and neither done nor lost."""
        return sum(len(each) for held in (self._out, self._reserved) for each in held.values())

    @property
    def finished(self) -> bool:
        """No batch is left, none is out: the shards may flush what does not make a whole step."""
        return self.next >= self.end and not self.outstanding

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps, and a dispatcher of any mode goes on from.

        Raises:
            ValueError: batches are out.
        """
        if self.outstanding:
            raise ValueError(f"{self.outstanding} batches are out")
        return {"next": self.next, "step": self.step, "tokens": self.tokens, "batches_lost": self.batches_lost}

    def load(self, state: Mapping[str, int]) -> None:
        """Goes on from a state; nothing is dispatched yet."""
        self.next, self.step = state["next"], state["step"]
        self.tokens, self.batches_lost = state["tokens"], state["batches_lost"]
        self._speed_monitor = _PACES[self.mode.kind](self.mode, self.step)
        self._speed_monitor.workers(self._out)

    def woken(self) -> list[int]:
        """Who waits, and may ask again."""
        woken = [each for each in self._waiting if self._is_through(each) or self._may(each)]
        for each in woken:
            del self._waiting[each]
        return woken

    def _is_through(self, worker: int) -> bool:
        return not self._reserved[worker] and self.next >= self.end

    def _may(self, worker: int) -> bool:
        return self._speed_monitor.may(worker, self.next >= self.end)


class _SpeedMonitor:
    """When a worker goes on, and with which token. As it is, that of async and bsp."""

    def __init__(self, mode: Mode, step: int):
        self._mode, self._step = mode, step

    def workers(self, live: Collection[int]) -> None:
        """These are live now."""

    def may(self, worker: int, last: bool) -> bool:
        """Whether it goes on; `last`: all batches are reserved, and whoever has none has nothing to do any more."""
        return True

    def dispatch(self, worker: int) -> int:
        """The token of its next batch."""
        return self._step

    def done(self, worker: int) -> None:
        """One of its batches is done."""

    def stepped(self, step: int) -> None:
        self._step = step

    def lost(self, worker: int, tokens: Collection[int]) -> None:
        """It is gone, and these tokens with it."""


class _Tokens(_SpeedMonitor):
    """gba: every value M times, ascending.

    The list is made as workers ask (Algorithm 2, lines 1 to 6), so that a lost token can be made good: the value that
    is being dispatched is dispatched once more. Else tokens would run ahead of the steps, by one for every M lost ones,
    and stale gradients pass for fresh.
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


class _Rounds(_SpeedMonitor):
    """sync, hop-bw: a step has places, and a place that is lost is free again."""

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


class _Clocks(_SpeedMonitor):
    """hop-bs: bounded staleness; who joins begins beside the slowest."""

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


_PACES: dict[str, type[_SpeedMonitor]] = {
    "gba": _Tokens,
    "async": _SpeedMonitor,
    "bsp": _SpeedMonitor,
    "sync": _Rounds,
    "hop-bw": _Rounds,
    "hop-bs": _Clocks,
}
