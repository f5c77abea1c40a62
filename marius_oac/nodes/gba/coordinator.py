"""What one process knows of all workers and shards: the dispatcher, the shards' global steps, and loss recoveries.

A state machine like the dispatcher: no threads, no network, no clock. Numbers of workers and shards come in, and what
is to be sent comes out.

    worker asks                   ask       a dispatch, WAIT or None
    worker has all shards' acks   done      those to be told that they may ask again; an ack carries the shard's step
    worker is gone                gone      every shard is told to refuse its batches, and answers which it has settled
    a shard answers               answered  with the last answer: which places the shards fill, which batches are lost

Only a recovery can tell what became of the pushes of a worker that died: a batch that every shard has taken is done;
one that none has taken vanishes, token and all; of one that is torn between them the shards that lack it fill the
place with nothing, so that all shards go on counting alike.

Guarantees:
- At rest all shards are at the same step, and have taken the same batches but for torn ones; a worker that dies tears
  no more batches than it had pushed without all acks.
- Nobody waits for the dead for longer than a recovery takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from marius_oac.nodes.gba.dispatcher import WAIT, Dispatch, Dispatcher, Wait


class Verdict(NamedTuple):
    """For each shard the tokens of the places that it fills now; the batches that all shards have settled, and the lost
    ones, ascending; who may ask again.
    """

    fills: list[list[int]]
    done: list[int]
    lost: list[int]
    woken: list[int]


@dataclass
class _RollCall:
    """Of a worker that is gone: its batches and their tokens; of each shard that has answered what it had settled."""

    out: dict[int, int]
    settled: dict[int, Sequence[bool]] = field(default_factory=dict)
    back: bool = False


class Coordinator:
    """Args:
    dispatcher: of the mode.
    shards: how many there are.
    """

    def __init__(self, dispatcher: Dispatcher, shards: int):
        self.dispatcher = dispatcher
        self._steps = [dispatcher.step] * shards
        self._calls: dict[int, _RollCall] = {}

    @property
    def finished(self) -> bool:
        """No batch is left, none is out: every shard may flush, after what it was told to fill."""
        return self.dispatcher.finished and not self._calls

    def ask(self, worker: int) -> Dispatch | None | Literal[Wait.WAIT]:
        """What a worker does next; one that is back waits for the end of the recovery of what its old self had."""
        if worker in self._calls:
            self._calls[worker].back = True
            return WAIT
        return self.dispatcher.ask(worker)

    def expects(self, worker: int) -> bool:
        """Whether the loss of the worker is being recovered from."""
        return worker in self._calls

    def done(self, worker: int, batch: int, steps: Sequence[int]) -> list[int]:
        """All shards have acknowledged the push of a batch, each at its step. Returns who may ask again.

        Raises:
            ValueError: the worker does not have this batch.
        """
        return self.dispatcher.done(worker, batch) + self._stepped(dict(enumerate(steps)))

    def stepped(self, shard: int, step: int) -> list[int]:
        """A shard is at a step, by what it has filled. Returns who may ask again."""
        return self._stepped({shard: step})

    def gone(self, worker: int) -> list[int] | None:
        """A worker has died or left, and nothing more comes from it.

        Returns:
            The batches that every shard must refuse, and answer for, even if there are none; None: a recovery for it
            is on, since it came back and went again.
        """
        if worker in self._calls:
            self._calls[worker].back = False
            return None
        self._calls[worker] = _RollCall(self.dispatcher.out(worker))
        return list(self._calls[worker].out)

    def answered(self, shard: int, worker: int, settled: Sequence[bool], step: int) -> Verdict:
        """A shard's answer: which of the batches it had settled before, in their order, and its step.

        Returns:
            What follows; of the batches with the last answer.
        """
        call = self._calls[worker]
        call.settled[shard] = settled
        woken, fills = self._stepped({shard: step}), [[] for _ in self._steps]
        if len(call.settled) < len(self._steps):
            return Verdict(fills, [], [], woken)
        del self._calls[worker]
        done, torn = [], []
        for number, (batch, token) in enumerate(call.out.items()):
            lacking = [each for each in range(len(self._steps)) if not call.settled[each][number]]
            if not lacking:
                done.append(batch)
                woken += self.dispatcher.done(worker, batch)
            elif len(lacking) < len(self._steps):
                torn.append(batch)
                for each in lacking:
                    fills[each].append(token)
        lost = self.dispatcher.lost(worker, torn)
        return Verdict(fills, sorted(done), lost.batches, woken + lost.woken + [worker] * call.back)

    def _stepped(self, steps: Mapping[int, int]) -> list[int]:
        for shard, step in steps.items():
            self._steps[shard] = max(self._steps[shard], step)
        return self.dispatcher.stepped(min(self._steps))
