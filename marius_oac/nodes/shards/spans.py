"""Trainers give each other the examples of a log that they read together (`data/logs/together.py`), in messages.

    trainer                              owner of a span
      READ (visit, span) ───────────────>  decodes it, once for all trainers, and then the next one that it owns
      <────────────────────── EXAMPLES     each trainer's portion, as it asks

Guarantees:
- The owner keeps a span until all trainers have their portions. Trainers in lockstep are a few batches apart, so few
  spans are kept, `held` at most. One that was dropped is decoded again for a trainer that is late.
- It decodes one span ahead of the newest that was asked for.
- A span that can't be read ends the run when a trainer asks for it, not before: the owner fails with the error, as its
  planner would on one machine, and the other trainers lose it with this reason. Read ahead, it is left alone.
- One thread decodes, from `__enter__` to `__exit__`, which leaves none. No lock is held while it decodes or sends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.together import OwnSpans, Portion
from marius_oac.errors import InputError
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Out
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.messages import Malformed
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.workers import join
from marius_oac.types import present

_Span = tuple[int, int]  # visit, number


class SpanServer:
    """Decodes the spans that this trainer owns, and answers all trainers.

    Args:
        server: of this process; it hands over the requests.
        own: what decodes.
        trainers: number of all trainers, which are peers 0 to `trainers` - 1.
        held: the most spans that are kept.
        bind: called by the thread with "plan" before its first span (`runtime/machine/binding.py`).
    """

    def __init__(self, server: ShardServer, own: OwnSpans, trainers: int, held: int, bind: Callable[[str], object]):
        self._server, self._own, self._trainers, self._held, self._bind = server, own, trainers, held, bind
        self._changed = threading.Condition()
        self._asked: OrderedDict[_Span, list[tuple[int, messages.Read]]] = OrderedDict()  # with the peers
        self._made: OrderedDict[_Span, list[Portion | None]] = OrderedDict()  # None: given
        self._newest: _Span | None = None
        self._ahead_of: _Span | None = None  # the last one that was asked for when one was decoded ahead
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="spans")

    def ask(self, peer: int, message: messages.Read) -> list[Out]:
        """Returns the answer if it is there; else it is sent later. Never waits.

        Raises:
            Malformed: the peer is no trainer.
        """
        if peer >= self._trainers:
            raise Malformed("READ of no trainer")
        span = message.visit, message.span
        with self._changed:
            self._newest = max(self._newest or span, span)
            self._asked.setdefault(span, []).append((peer, message))
            out = self._answers(span)
            self._changed.notify_all()
        return out

    def _answers(self, span: _Span) -> list[Out]:
        """The answers to those who wait for a span, if it is there; with the lock."""
        portions = self._made.get(span)
        if portions is None or any(portions[peer] is None for peer, _ in self._asked.get(span, ())):
            return []
        out: list[Out] = []
        for peer, message in self._asked.pop(span, ()):
            portion, portions[peer] = present(portions[peer]), None
            out.append((peer, messages.Examples(message.number, span[1], portion.digests, portion.content)))
        if not any(portions):
            del self._made[span]
        return out

    def _work(self) -> None:
        try:
            self._bind("plan")
            while (span := self._next()) is not None:
                self._decode(span)
        except Closed:
            return
        except BaseException as error:  # whatever it is, waiting trainers must be answered
            self._server.failed(error)

    def _next(self) -> _Span | None:
        """Waits for what is to be decoded next: what was asked for, else what follows; None: it is over."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._asked or self._newest != self._ahead_of)
                if self._closed:
                    return None
                if self._asked:
                    return next(iter(self._asked))
                newest = self._ahead_of = present(self._newest)
            try:
                following = self._own.following(*newest)
            except InputError:  # raised again when a trainer asks
                continue
            if following is not None:
                return following

    def _decode(self, span: _Span) -> None:
        try:
            if not self._own.owns(*span):
                raise Malformed(f"READ: span {span[1]} of reading {span[0]} is not of this trainer")
            portions = self._own.portions(*span)
        except (InputError, Malformed) as error:
            with self._changed:
                asked = self._asked.get(span, [])
            if not asked:  # read ahead; raised again when a trainer asks
                return
            raise self._server.blamed(asked[0][0], error) if isinstance(error, Malformed) else error from None
        with self._changed:
            self._made.pop(span, None)
            while len(self._made) >= self._held:
                self._made.popitem(last=False)
            self._made[span] = list(portions)
            out = self._answers(span)
        for peer, message in out:
            self._server.answer(peer, message)

    def __enter__(self) -> SpanServer:
        self._server.spans = self.ask
        try:
            self._thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        join(self._thread)
        self._own.close()


class SpanClient:
    """Implements `together.Exchange` on the connections of a source.

    Args:
        nodes: the connection to each trainer, by number.
    """

    def __init__(self, source: RemoteSource, nodes: Sequence[int]):
        self._source, self._nodes = source, nodes

    def fetch(
        self, wanted: Sequence[tuple[int, int, int]], parse: Callable[[int, Portion], LogBlock]
    ) -> list[LogBlock]:
        """See `Exchange.fetch`.

        Raises:
            NodeLost: an owner is lost, or can't read its span.
            Closed: this trainer can't go on.
        """
        pending, found = self._source.reading, dict[int, LogBlock]()
        places = {(self._nodes[owner], span): place for place, (owner, _, span) in enumerate(wanted)}
        with pending.asking(len(wanted)) as number:
            for owner, visit, span in wanted:
                self._source.connections[self._nodes[owner]].send(messages.Read(number, visit, span).frames())
            for node, answer in pending.answers():
                with self._source.said_by(node):
                    place = places.pop((node, answer.span), None)
                    if place is None:
                        raise Malformed(f"EXAMPLES of span {answer.span}, which was not asked for")
                    try:
                        found[place] = parse(place, Portion(answer.digests, answer.content))
                    except ValueError as error:
                        raise Malformed(f"EXAMPLES: {error}") from None
        return [found[place] for place in range(len(wanted))]
