"""A shard in a process that may train as well: threads that take messages, hand them to it, and send what follows.

Guarantees:
- One thread per door (`transport.Server`), from `__enter__` to `__exit__`, which leaves none. One message is handled
  at a time, whichever door it came through.
- The first error ends the threads and goes to `on_failure`; `fail` tells the trainers of it, so that none of them waits
  for an answer that will not come.
- A message that does not fit (`Malformed`) comes from a trainer of this run, for nobody else gets through a door: it is
  a defect, and an error as any other, which names the trainer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.nodes.messages import Kind, Malformed, Message
from marius_oac.nodes.shard import Shard
from marius_oac.nodes.transport.contract import Server, nonsense
from marius_oac.runtime.channel import Closed


class ShardServer:
    """Args:
    shard: what is served.
    doors: where messages come from, with the ranks that each of them has: an in-process one for this process, one
        on the network for the others. Closed by their owner.
    on_failure: called once, by the thread that failed, which holds no lock.
    """

    def __init__(
        self, shard: Shard, doors: Sequence[tuple[Server, Sequence[int]]], on_failure: Callable[[BaseException], None]
    ):
        self.shard, self._on_failure = shard, on_failure
        self._doors, self._door_of = [door for door, _ in doors], {}
        for door, ranks in doors:
            self._door_of |= dict.fromkeys(ranks, door)
        self._lock = threading.Lock()
        self.counts: dict[str, int] = {}
        """What the shards that were served have counted, up to the last `finish`: `DealtShard.metrics`."""
        self._failed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(door,), name=f"shard, door {number}")
            for number, door in enumerate(self._doors)
        ]

    def begin(self, first: int, shard: Shard) -> None:
        """Batches from `first` on follow; nothing is on its way. From now on it is `shard` that is served."""
        with self._lock:
            self.shard = shard
            shard.begin(first)

    def finish(self) -> None:
        """No push is on its way any more: what waits for others is applied."""
        with self._lock:
            self.shard.flush()
            for name, value in self.shard.metrics().items():
                both = value, self.counts.get(name, 0)
                self.counts[name] = max(both) if name.endswith("max") else sum(both)

    def fail(self, error: BaseException) -> None:
        """Every trainer's connection is lost to it, because of this error."""
        why = str(error) if isinstance(error, MariusOacError) else f"{type(error).__name__}: {error}"
        for door in self._doors:
            door.fail(why)

    def _serve(self, door: Server) -> None:
        try:
            while True:
                request = door.receive()
                self._handle(request.peer, request.frames)
        except Closed:
            return
        except BaseException as error:  # whatever it is: those who wait must know
            with self._lock:
                first, self._failed = not self._failed, True
            if first:
                self._on_failure(error)

    def _handle(self, peer: int, frames: Sequence) -> None:
        with self._lock:
            try:
                out = self.shard.handle(peer, frames)
            except Malformed as error:
                raise NodeLost(self._door_of[peer].names[peer], nonsense(error)) from error
            # Within the lock, lest a patch overtake the rows that it belongs to.
            for to, message in out:
                self._send(to, message)

    def _send(self, to: int, message: Message) -> None:
        try:
            self._door_of[to].send(to, message.frames())
        except ValueError as error:  # larger than a message may be
            if message.kind not in (Kind.ROWS, Kind.PATCH):
                raise
            raise InputError(
                f"batch {message.sequence}: {error}; make batches smaller", "training.batch_size"
            ) from None

    def __enter__(self) -> ShardServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for door in self._doors:
            with suppress(NodeLost):
                door.close()
        for thread in self._threads:
            thread.join()
