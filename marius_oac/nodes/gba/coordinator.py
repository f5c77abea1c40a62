"""Coordinates all workers and shards: owns the dispatcher, tracks the shards' global steps, recovers lost workers.

A state machine like the dispatcher: no threads, no network, no clock. Its arguments are numbers of workers and shards.
It returns what is to be sent.

    event                           method    returns
    a worker asks                   ask       a dispatch, WAIT or None
    a worker has all shards' acks   done      the workers that may ask again; an ack carries the shard's step
    a worker is gone                gone      its batches: every shard is to refuse them, and answers which are settled
    a shard answers                 answered  after the last answer: the slots that shards fill, and the lost batches

Recovery finds out what became of the pushes of a worker that died. A batch that every shard has taken is done. One that
no shard has taken is discarded with its token. One that only some shards have taken is torn: the other shards fill its
slot with no gradient, so that all shards go on counting alike.

Guarantees:
- When no message is under way all shards are at the same step, and have taken the same batches except for torn ones. A
  worker that dies tears only batches that it had pushed and not all shards had acknowledged.
- Nobody waits for a dead worker for longer than its recovery takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from marius_oac.nodes.gba.dispatcher import WAIT, Dispatch, Dispatcher, Wait


class Verdict(NamedTuple):
    """What a recovery has found.

    Attributes:
        fills: for each shard the tokens of the slots that it fills now.
        done: the batches that all shards have taken, ascending.
        lost: the batches that are lost, ascending.
        woken: the workers that may ask again.
    """

    fills: list[list[int]]
    done: list[int]
    lost: list[int]
    woken: list[int]


@dataclass
class _Recovery:
    """Of a worker that is gone: its batches' tokens, what each shard that has answered had settled, and whether the
    worker is back."""

    out: dict[int, int]
    settled: dict[int, Sequence[bool]] = field(default_factory=dict)
    back: bool = False


class Coordinator:
    """Dispatches batches to workers and recovers those of lost workers.

    Args:
        dispatcher: of the mode.
        shards: number of shards.
    """

    def __init__(self, dispatcher: Dispatcher, shards: int):
        self.dispatcher = dispatcher
        self._steps = [dispatcher.step] * shards
        self._recoveries: dict[int, _Recovery] = {}

    @property
    def finished(self) -> bool:
        """Whether no batch is left or outstanding: shards may flush once they have filled the slots they were given."""
        return self.dispatcher.finished and not self._recoveries

    def ask(self, worker: int) -> Dispatch | None | Literal[Wait.WAIT]:
        """Returns what a worker does next. One that is back waits until the batches that it had are recovered."""
        if worker in self._recoveries:
            self._recoveries[worker].back = True
            return WAIT
        return self.dispatcher.ask(worker)

    def expects(self, worker: int) -> int | None:
        """Returns how many of the worker's batches are being recovered; None: it is not."""
        return len(self._recoveries[worker].out) if worker in self._recoveries else None

    def done(self, worker: int, batch: int, steps: Sequence[int]) -> list[int]:
        """Records that all shards have acknowledged the push of a batch, each at its step. Returns who may ask again.

        Raises:
            ValueError: the worker does not have this batch.
        """
        return self.dispatcher.done(worker, batch) + self._stepped(dict(enumerate(steps)))

    def stepped(self, shard: int, step: int) -> list[int]:
        """Records a shard's step after it has filled slots. Returns who may ask again."""
        return self._stepped({shard: step})

    def gone(self, worker: int) -> list[int] | None:
        """Begins the recovery of a worker that has died or left: it sends nothing any more.

        Returns:
            The batches that every shard must refuse and answer for, even if there are none. None: the worker came back
            and went again while its first loss is still being recovered.
        """
        if worker in self._recoveries:
            self._recoveries[worker].back = False
            return None
        self._recoveries[worker] = _Recovery(self.dispatcher.out(worker))
        return list(self._recoveries[worker].out)

    def answered(self, shard: int, worker: int, settled: Sequence[bool], step: int) -> Verdict:
        """Records a shard's answer: which of the batches it had settled before, in their order, and its step.

        Returns:
            What follows. It names batches and slots after the last shard's answer only.
        """
        recovery = self._recoveries[worker]
        recovery.settled[shard] = settled
        fills: list[list[int]] = [[] for _ in self._steps]
        woken = self._stepped({shard: step})
        if len(recovery.settled) < len(self._steps):
            return Verdict(fills, [], [], woken)
        del self._recoveries[worker]
        done, torn = [], []
        for number, (batch, token) in enumerate(recovery.out.items()):
            lacking = [each for each in range(len(self._steps)) if not recovery.settled[each][number]]
            if not lacking:
                done.append(batch)
                woken += self.dispatcher.done(worker, batch)
            elif len(lacking) < len(self._steps):
                torn.append(batch)
                for each in lacking:
                    fills[each].append(token)
        lost = self.dispatcher.lost(worker, torn)
        return Verdict(fills, sorted(done), lost.batches, woken + lost.woken + [worker] * recovery.back)

    def _stepped(self, steps: Mapping[int, int]) -> list[int]:
        for shard, step in steps.items():
            self._steps[shard] = max(self._steps[shard], step)
        return self.dispatcher.stepped(min(self._steps))
