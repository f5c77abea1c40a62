"""Serves a shard in a process that may train as well: threads receive messages and send the shard's answers.

Guarantees:
- One thread per endpoint (`transport.Server`), from `__enter__` to `__exit__`, which leaves none. One message is
  handled at a time, whichever endpoint it came through.
- The first error ends the threads and is given to `on_failure`. `fail` reports it to the trainers, so that none waits
  for an answer that will not come.
- The loss of an elastic worker, or of a trainer that is not in the group (`nodes.training.rowless`), is no error.
- Endpoints admit trainers of this run only. So a message that does not fit (`Malformed`) is a defect, and an error that
  names the trainer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import numpy as np

from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.nodes.gba.counts import add_counts
from marius_oac.nodes.shards.dispatched_shard import DispatchedShard
from marius_oac.nodes.shards.shard import Out, Shard
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Frames, Server, nonsense
from marius_oac.nodes.transport.messages import Malformed, Message, parse
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.workers import join


class ShardServer:
    """Receives messages for a shard and sends its answers.

    Args:
        shard: what is served.
        endpoints: where messages come from, with the ranks of each: an in-process one for this process, one on the
            network for the others. Closed on exit.
        on_failure: called once, by the thread that failed, which holds no lock.
        trainers: ranks below it are members of the run's group; others are elastic workers, or treated as such.
        on_lost: called with the rank of one of the latter that is gone, by the thread that found it, with the lock.
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
        self._welcome: messages.Welcome | None = None
        self._joining: list[int] = []  # elastic workers that ask what the run is, before it is known
        self._waiting_workers: list[int] = []  # elastic workers that want batches, while none are dispatched
        self._endpoints = [endpoint for endpoint, _ in endpoints]
        self._endpoint_of = {rank: endpoint for endpoint, ranks in endpoints for rank in ranks}
        self._lock = threading.Lock()
        self.counts: dict[str, float] = {}
        """Counts of all shards that were served, up to the last `finish`: `DispatchedShard.metrics`."""
        self.spans: Callable[[int, messages.Read], list[Out]] | None = None
        """Answers other trainers that read a log together with this one."""
        self._failed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(endpoint,), name=f"shard, endpoint {number}")
            for number, endpoint in enumerate(self._endpoints)
        ]

    def begin(self, first: int, shard: Shard) -> None:
        """Serves `shard` from now on, for batches from `first` on; called when no message is under way."""
        with self._lock:
            before, self.shard = self.shard.dispatch_server, shard
            waiting = self._waiting_workers + (before.waiting_workers if before else [])
            shard.begin(first)
            if shard.dispatch_server:
                shard.dispatch_server.waiting_workers, waiting = waiting, []
            self._waiting_workers = waiting

    def finish(self) -> None:
        """Flushes the shard and adds up its counts; called when no push is under way any more."""
        with self._lock:
            self.shard.flush()
            self.counts = add_counts(self.counts, self.shard.metrics())

    def welcome(self, run: bytes) -> None:
        """Sends elastic workers, now and later, this description of the run."""
        with self._lock:
            self._welcome = messages.Welcome(np.frombuffer(run, np.uint8))
            for peer in self._joining:
                self._send(peer, self._welcome)
            self._joining.clear()

    def reconcile(self, message: messages.Refuse | messages.Fill, number: int) -> messages.Answer | messages.Filled:
        """Handles the coordinator's message after the loss of a worker; returns the answer of shard `number`.

        Raises:
            Malformed: no batches are dispatched.
        """
        with self._lock:
            shard = self.shard
            if not isinstance(shard, DispatchedShard):
                raise Malformed(f"{message.kind.name} is not sent to this shard")
            if isinstance(message, messages.Fill):
                return messages.Filled(message.worker, number, shard.fill(message.tokens.tolist()))
            settled, step = shard.refuse(message.batches.tolist())
            return messages.Answer(message.worker, np.array(settled, np.bool_), number, step)

    def fail(self, error: BaseException) -> None:
        """Makes every trainer's calls raise `NodeLost` with this error."""
        for endpoint in self._endpoints:
            endpoint.fail(reason_of(error))

    def _serve(self, endpoint: Server) -> None:
        try:
            self._bind("serve")
            while True:
                request = endpoint.receive()
                self._handle(request.peer, request.frames)
        except Closed:
            return
        except BaseException as error:  # whatever it is, waiting trainers must be answered
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Ends serving with an error; the first one counts."""
        with self._lock:
            first, self._failed = not self._failed, True
        if first:
            self._on_failure(error)

    def answer(self, peer: int, message: Message) -> None:
        """Sends a trainer an answer that was not there when it asked."""
        self._send(peer, message)

    def blamed(self, peer: int, error: Malformed) -> NodeLost:
        """The error for a peer whose message does not fit."""
        return NodeLost(self._endpoint_of[peer].names[peer], nonsense(error))

    def _handle(self, peer: int, frames: Frames | None) -> None:
        with self._lock:
            try:
                out = self._gone(peer) if frames is None else self._answers(peer, parse(frames))
            except Malformed as error:
                raise self.blamed(peer, error) from error
            # Within the lock, since otherwise a patch could overtake its rows.
            for to, message in out:
                self._send(to, message)

    def _answers(self, peer: int, message: Message) -> list[Out]:
        if isinstance(message, messages.Read) and self.spans is not None:
            return self.spans(peer, message)
        if self._is_elastic(peer):
            match message:
                case messages.Join():
                    if self._welcome is not None:
                        return [(peer, self._welcome)]
                    self._joining.append(peer)
                    return []
                case messages.Reserve() if self.shard.dispatch_server is None:
                    self._waiting_workers.append(peer)
                    return []
        return self.shard.handle(peer, message)

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
            if not isinstance(message, messages.Rows | messages.Patch):
                raise
            raise InputError(
                f"batch {message.batch_index}: {error}; make batches smaller", "training.batch_size"
            ) from None
        except NodeLost:
            if not self._is_elastic(to):
                raise

    def __enter__(self) -> ShardServer:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # no thread is left even if an endpoint can't be closed
            for thread in reversed(self._threads):
                stack.callback(join, thread)
            for endpoint in reversed(self._endpoints):
                stack.callback(_close, endpoint)


def _close(endpoint: Server) -> None:
    with suppress(NodeLost):
        endpoint.close()


def reason_of(error: BaseException) -> str:
    """Returns what trainers are told of an error."""
    kind = "" if isinstance(error, MariusOacError) else type(error).__name__
    return ": ".join(filter(None, (kind, str(error))))
