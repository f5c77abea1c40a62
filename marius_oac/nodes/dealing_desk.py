"""The coordinator's side of what trainers and it say to each other: a state machine, as `shard`.

RESERVE   which batch is the trainer's next one: DEAL at once; with `final` nothing more than whole global batches
          is dealt, since a user wants to stop
ENTER     it is about to pull: TOKEN, as soon as the mode lets it go on
DONE      all shards have its gradients: who waited for that gets a TOKEN
FINISHED  to all, once no batch is left and none is out
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.nodes.coordinator import Coordinator
from marius_oac.nodes.dealer import Deal
from marius_oac.nodes.messages import Kind, Malformed, Message, array

KINDS = (Kind.RESERVE, Kind.ENTER, Kind.DONE)


class DealingDesk:
    """Args:
    coordinator: has dealt nothing yet.
    shards: how many there are.
    parts: see `Stretch`.
    """

    def __init__(self, coordinator: Coordinator, shards: int, parts: int):
        self.coordinator, self._shards, self._parts = coordinator, shards, parts
        self._entering: dict[int, int] = {}  # of each trainer that waits for a token: the batch
        self._through: list[int] = []  # trainers that have been told that there is none left

    def handle(self, peer: int, message: Message, frames: Sequence) -> list[tuple[int, Message]]:
        """What follows from a message of trainer `peer`. Raises Malformed."""
        if message.kind == Kind.RESERVE:
            return self._reserve(peer, message)
        if message.kind == Kind.ENTER:
            return self._enter(peer, message)
        return self._done(peer, message, array(frames[0] if frames else b"", np.int64, self._shards))

    def metrics(self) -> dict[str, int]:
        """Tokens dealt, and batches that were lost with those who had them."""
        dealer = self.coordinator.dealer
        return {"tokens": dealer.tokens, "batches_lost": dealer.batches_lost}

    def _reserve(self, peer: int, message: Message) -> list[tuple[int, Message]]:
        dealer = self.coordinator.dealer
        if message.final:
            dealer.stop(self._parts)
        batch = dealer.reserve(peer)
        if batch is not None:
            return [(peer, Message(Kind.DEAL, batch)), *self._tokens(dealer.woken())]
        if peer in self._through:
            raise Malformed("a batch is asked for again, though there is none left")
        self._through.append(peer)
        out = [(peer, Message(Kind.DEAL, dealer.next, final=True)), *self._tokens(dealer.woken())]
        return out + (self._finished([peer]) if self.coordinator.finished else [])

    def _enter(self, peer: int, message: Message) -> list[tuple[int, Message]]:
        if peer in self._entering or self.coordinator.dealer.reserved(peer)[:1] != [message.sequence]:
            raise Malformed(f"batch {message.sequence} is not the next one of that trainer")
        self._entering[peer] = message.sequence
        return self._tokens([peer])

    def _done(self, peer: int, message: Message, steps: np.ndarray) -> list[tuple[int, Message]]:
        try:
            woken = self.coordinator.done(peer, message.sequence, steps.tolist())
        except ValueError as error:
            raise Malformed(str(error)) from None
        return self._tokens(woken) + (self._finished(self._through) if self.coordinator.finished else [])

    def _tokens(self, woken: Sequence[int]) -> list[tuple[int, Message]]:
        deals = [(each, self.coordinator.ask(each)) for each in woken]
        return [self._token(each, deal) for each, deal in deals if isinstance(deal, Deal)]

    def _token(self, peer: int, deal: Deal) -> tuple[int, Message]:
        batch = self._entering.pop(peer)
        assert batch == deal.batch
        return peer, Message(Kind.TOKEN, batch, step=deal.token)

    def _finished(self, peers: Sequence[int]) -> list[tuple[int, Message]]:
        return [(each, Message(Kind.FINISHED, self.coordinator.dealer.next)) for each in peers]
