"""The coordinator's side of the protocol that dispatches batches: a state machine, as `shard` is.

    RESERVE   asks for the trainer's next batch; answered by DISPATCH at once. With `final` a user wants to stop: only
              the current global batch is completed
    ENTER     the trainer is about to pull; answered by TOKEN as soon as the mode lets it go on
    DONE      all shards have the trainer's gradients; those that waited for this get a TOKEN
    FINISHED  sent to all once no batch is left or outstanding and every slot is filled
    REFUSE    sent when an elastic worker is gone: no shard takes its batches any more, and each answers which of them
              it has (ANSWER)
    FILL      asks a shard to fill the slot of a batch that other shards have and it lacks; answered by FILLED

Elastic workers wait until the first trainer of the run asks, since then all shards are ready. One that asks after the
last batch waits for the next dispatch server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from marius_oac.nodes.gba.coordinator import Coordinator
from marius_oac.nodes.gba.dispatcher import WAIT
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.messages import Malformed, Message, array

Out = tuple[int, Message]
"""A trainer's rank, and a message to it."""
Handled: TypeAlias = messages.Reserve | messages.Enter | messages.Done | messages.Answer | messages.Filled
"""What trainers send to the coordinator."""


class DispatchServer:
    """Answers the messages of trainers about batches.

    Args:
        coordinator: has dispatched nothing yet.
        carriers: ranks of the trainers whose processes have the shards, in the shards' order.
        parts: see `BatchRange`.
        trainers: number of trainers in the run's group. Higher ranks are elastic workers, or treated as such.
        own: ranks below this one belong to the run itself; None: `trainers`.
    """

    def __init__(
        self, coordinator: Coordinator, carriers: Sequence[int], parts: int, trainers: int, own: int | None = None
    ):
        self._own = trainers if own is None else own
        self.coordinator, self._carriers, self._parts, self._trainers = coordinator, carriers, parts, trainers
        self._entering: dict[int, int] = {}  # of each worker that waits for a token: the batch
        self._through: list[int] = []  # peers that know that no batch is left
        self.waiting_workers: list[int] = []  # ranks of elastic workers that wait for the run
        self._open, self._examples, self._stopped_outside = False, 0, False
        self._outside = 0, 0.0  # examples of batches that elastic workers have computed, and the sum of their losses
        self._out: dict[int, int] = {}  # examples of each outstanding batch
        self._filling: list[int] = []  # shards that have yet to fill slots
        self._lives = trainers  # the next worker's number: an elastic worker that comes again gets a new one
        self._elastic_workers = 0  # those that joined, without the run's own
        self._workers: dict[int, int] = {}  # by rank
        self._peers: dict[int, int] = {}  # ranks, by worker

    def handle(self, peer: int, message: Handled) -> list[Out]:
        """Returns the messages to send after a message of trainer `peer`.

        Raises:
            Malformed: the message is not one that a trainer may send now.
        """
        match message:
            case messages.Reserve():
                return self._asked(peer, message)
            case messages.Enter():
                return self._enter(peer, message)
            case messages.Done():
                return self._done(peer, message)
        if self._carriers[message.shard : message.shard + 1] != [peer]:
            raise Malformed(f"an answer for shard {message.shard}, which that trainer does not have")
        return self._filled(message) if isinstance(message, messages.Filled) else self._answered(message)

    def gone(self, peer: int) -> list[Out]:
        """Returns the messages to send when an elastic worker is gone."""
        for waiting in (self.waiting_workers, self._through):
            if peer in waiting:
                waiting.remove(peer)
        worker = self._workers.pop(peer, None)
        if worker is None or self.coordinator.finished:  # the shards may work for the next dispatch server already
            return []
        del self._peers[worker]
        self._entering.pop(worker, None)
        batches = np.array(self.coordinator.gone(worker), np.int64)
        return [(rank, messages.Refuse(worker, batches)) for rank in self._carriers]

    def metrics(self) -> dict[str, float]:
        """Returns counts: tokens, examples of the batches that are done, lost batches, elastic workers; of trainers
        outside the group the examples, the sum of losses, and whether a user wants to stop (`stopped_max`)."""
        dispatcher = self.coordinator.dispatcher
        counts = {"tokens": dispatcher.tokens, "examples": self._examples, "batches_lost": dispatcher.batches_lost}
        outside = {"outside_examples": self._outside[0], "outside_loss": self._outside[1]}
        outside["stopped_max"] = int(self._stopped_outside)
        return counts | outside | {"guests": self._elastic_workers}

    def _asked(self, peer: int, message: messages.Reserve) -> list[Out]:
        if peer in self._through and peer < self._trainers:
            raise Malformed("a batch is asked for again, though none is left")
        if peer >= self._trainers and (not self._open or peer in self._through):
            self.waiting_workers.append(peer)
            return []
        out = self._reserve(peer, message.stop)
        if not self._open:
            self._open, waiting, self.waiting_workers = True, self.waiting_workers, []
            for elastic_worker in waiting:
                out += self._reserve(elastic_worker, False)
        return out

    def _reserve(self, peer: int, stop: bool) -> list[Out]:
        dispatcher = self.coordinator.dispatcher
        woken = dispatcher.stop(self._parts) if stop else []
        self._stopped_outside |= stop and peer >= self._trainers
        batch = dispatcher.reserve(self._worker(peer))
        tokens = self._tokens(woken + dispatcher.woken())
        if batch is not None:
            return [(peer, messages.Dispatch(batch)), *tokens]
        self._through.append(peer)
        out = [(peer, messages.Dispatch(dispatcher.next, final=True)), *tokens]
        return out + self._maybe_finished([peer])

    def _worker(self, peer: int) -> int:
        if peer not in self._workers:
            worker = peer
            if peer >= self._trainers:
                worker, self._lives = self._lives, self._lives + 1
                self._elastic_workers += peer >= self._own
            self._workers[peer], self._peers[worker] = worker, peer
        return self._workers[peer]

    def _enter(self, peer: int, message: messages.Enter) -> list[Out]:
        worker = self._workers.get(peer, -1)
        if worker in self._entering or self.coordinator.dispatcher.reserved(worker)[:1] != [message.batch_index]:
            raise Malformed(f"batch {message.batch_index} is not the next one of that trainer")
        self._entering[worker] = message.batch_index
        self._out[message.batch_index] = message.examples
        return self._tokens([worker])

    def _done(self, peer: int, message: messages.Done) -> list[Out]:
        steps = array(message.steps, np.int64, len(self._carriers)).tolist()
        try:
            woken = self.coordinator.done(self._workers.get(peer, -1), message.batch_index, steps)
        except ValueError as error:
            raise Malformed(str(error)) from None
        examples = self._out.pop(message.batch_index)
        self._examples += examples
        if peer >= self._trainers:
            self._outside = self._outside[0] + examples, self._outside[1] + examples * float(message.loss[0])
        return self._tokens(woken) + self._maybe_finished()

    def _answered(self, message: messages.Answer) -> list[Out]:
        expected, settled = self.coordinator.expects(message.worker), message.settled.tolist()
        if len(settled) != expected:
            about = f"{len(settled)} batches of worker {message.worker}"
            raise Malformed(f"an answer about {about}, which nobody asked for")
        verdict = self.coordinator.answered(message.shard, message.worker, settled, message.step)
        self._examples += sum(self._out.pop(batch) for batch in verdict.done)
        for batch in verdict.lost:
            self._out.pop(batch, None)  # it may have been reserved only
        out = []
        for shard, tokens in enumerate(verdict.fills):
            if tokens:
                self._filling.append(shard)
                out.append((self._carriers[shard], messages.Fill(message.worker, np.array(tokens, np.int64))))
        return out + self._tokens(verdict.woken) + self._maybe_finished()

    def _filled(self, message: messages.Filled) -> list[Out]:
        if message.shard not in self._filling:
            raise Malformed(f"shard {message.shard} has filled slots that nobody asked for")
        self._filling.remove(message.shard)
        return self._tokens(self.coordinator.stepped(message.shard, message.step)) + self._maybe_finished()

    def _tokens(self, woken: Sequence[int]) -> list[Out]:
        out: list[Out] = []
        for worker in woken:
            dispatch = self.coordinator.ask(worker)
            if dispatch is not None and dispatch is not WAIT:
                del self._entering[worker]
                out.append((self._peers[worker], messages.Token(dispatch.batch, dispatch.token)))
        return out

    def _maybe_finished(self, peers: Sequence[int] | None = None) -> list[Out]:
        """Returns FINISHED for these peers, or for all that are through, if everything is finished."""
        if not self.coordinator.finished or self._filling:
            return []
        recipients = self._through if peers is None else peers
        return [(each, messages.Finished(self.coordinator.dispatcher.next)) for each in recipients]
