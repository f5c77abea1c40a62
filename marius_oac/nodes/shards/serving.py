"""A shard in a process that may train as well: threads that take messages, hand them to it, and send what follows.

Guarantees:
- One thread per door (`transport.Server`), from `__enter__` to `__exit__`, which leaves none. One message is handled
  at a time, whichever door it came through.
- The first error ends the threads and goes to `on_failure`; `fail` tells the trainers of it, so that none of them waits
  for an answer that will not come.
- An elastic worker (`elastic_workers`) that is gone, or that can't be sent anything any more, ends nothing; nor does a
  trainer of the run's own that is not in its group (`training.rowless`).
- A message that does not fit (`Malformed`) comes from a trainer of this run, for nobody else gets through a door: it is
  a defect, and an error as any other, which names the trainer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.nodes.gba.counts import add_counts
from marius_oac.nodes.shards.shard import Out, Shard
from marius_oac.nodes.transport.contract import Server, nonsense
from marius_oac.nodes.transport.messages import Kind, Malformed, Message, array, parse
from marius_oac.runtime.channel import Closed


class ShardServer:
    """Args:
    shard: what is served.
    doors: where messages come from, with the ranks that each of them has: an in-process one for this process, one
        on the network for the others. Closed by their owner.
    on_failure: called once, by the thread that failed, which holds no lock.
    trainers: ranks below it are members of the run's group; others are elastic workers, or are treated as such.
    on_lost: called where one of these is gone, with its rank, by the thread that found it, which holds the lock.
    bind: called by each thread with "serve" before its first message (`runtime/machine/binding.py`).
    """

    def __init__(
        self,
        shard: Shard,
        endpoints: Sequence[tuple[Server, Sequence[int]]],
        on_failure: Callable[[BaseException], None],
        trainers: int | None = None,
        on_lost: Callable[[int], object] = lambda rank: None,
        bind: Callable[[str], object] = lambda role: None,
    ):
        self.shard, self._on_failure, self._bind = shard, on_failure, bind
        self._trainers, self._on_lost = trainers, on_lost
        self._welcome: np.ndarray | None = None
        self._joining: list[int] = []  # elastic workers that want to know the run, before anybody does
        self._waiting_workers: list[int] = []  # elastic workers that want batches, while none are dispatched
        self._endpoints, self._endpoint_of = [endpoint for endpoint, _ in endpoints], {}
        for endpoint, ranks in endpoints:
            self._endpoint_of |= dict.fromkeys(ranks, endpoint)
        self._lock = threading.Lock()
        self.counts: dict[str, float] = {}
        """What the shards that were served have counted, up to the last `finish`: `DispatchedShard.metrics`."""
        self._failed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(endpoint,), name=f"shard, door {number}")
            for number, endpoint in enumerate(self._endpoints)
        ]

    def begin(self, first: int, shard: Shard) -> None:
        """Batches from `first` on follow; nothing is on its way. From now on it is `shard` that is served."""
        with self._lock:
            waiting = self._waiting_workers + (self.shard.desk.waiting_workers if self.shard.desk else [])
            self.shard = shard
            shard.begin(first)
            if shard.desk:
                shard.desk.waiting_workers, waiting = waiting, []
            self._waiting_workers = waiting

    def finish(self) -> None:
        """No push is on its way any more: what waits for others is applied."""
        with self._lock:
            self.shard.flush()
            self.counts = add_counts(self.counts, self.shard.metrics())

    def welcome(self, run: bytes) -> None:
        """What elastic workers are told of the run."""
        with self._lock:
            self._welcome = np.frombuffer(run, np.uint8)
            for peer in self._joining:
                self._send(peer, Message(Kind.WELCOME, 0, [self._welcome]))
            self._joining.clear()

    def reconcile(self, message: Message, frames: Sequence) -> Message:
        """Takes the batches of who is gone no more, or fills places, as the coordinator says; what to answer."""
        values = array(frames[0], np.int64, -1).tolist()
        with self._lock:
            if message.kind == Kind.REFUSE:
                settled, step = self.shard.refuse(values)
                return Message(Kind.ANSWER, message.batch_index, [np.array(settled, np.bool_)], step=step)
            return Message(Kind.FILLED, message.batch_index, step=self.shard.fill(values))

    def fail(self, error: BaseException) -> None:
        """Every trainer's connection is lost to it, because of this error."""
        why = str(error) if isinstance(error, MariusOacError) else f"{type(error).__name__}: {error}"
        for endpoint in self._endpoints:
            endpoint.fail(why)

    def _serve(self, endpoint: Server) -> None:
        try:
            self._bind("serve")
            while True:
                request = endpoint.receive()
                self._handle(request.peer, request.frames)
        except Closed:
            return
        except BaseException as error:  # whatever it is: those who wait must know
            with self._lock:
                first, self._failed = not self._failed, True
            if first:
                self._on_failure(error)

    def _handle(self, peer: int, frames: Sequence | None) -> None:
        with self._lock:
            try:
                out = self._gone(peer) if frames is None else self._answers(peer, frames)
            except Malformed as error:
                raise NodeLost(self._endpoint_of[peer].names[peer], nonsense(error)) from error
            # Within the lock, lest a patch overtake the rows that it belongs to.
            for to, message in out:
                self._send(to, message)

    def _answers(self, peer: int, frames: Sequence) -> list[Out]:
        if self._is_elastic(peer):
            kind = parse(frames)[0].kind
            if kind == Kind.JOIN:
                if self._welcome is not None:
                    return [(peer, Message(Kind.WELCOME, 0, [self._welcome]))]
                self._joining.append(peer)
                return []
            if kind == Kind.RESERVE and self.shard.desk is None:
                self._waiting_workers.append(peer)
                return []
        return self.shard.handle(peer, frames)

    def _gone(self, peer: int) -> list[Out]:
        for waiting in (self._joining, self._waiting_workers):
            if peer in waiting:
                waiting.remove(peer)
        self._on_lost(peer)
        return self.shard.gone(peer)

    def _is_elastic(self, peer: int) -> bool:
        return self._trainers is not None and peer >= self._trainers

    def _send(self, to: int, message: Message) -> None:
        try:
            self._endpoint_of[to].send(to, message.frames())
        except ValueError as error:  # larger than a message may be
            if message.kind not in (Kind.ROWS, Kind.PATCH):
                raise
            raise InputError(
                f"batch {message.batch_index}: {error}; make batches smaller", "training.batch_size"
            ) from None
        except NodeLost:
            if not self._is_elastic(to):
                raise

    def __enter__(self) -> ShardServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for endpoint in self._endpoints:
            with suppress(NodeLost):
                endpoint.close()
        for thread in self._threads:
            thread.join()
