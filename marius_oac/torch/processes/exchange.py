"""This process's side of rows in several processes: pulled ahead, patched, and their gradients pushed back.

It is `nodes.shards.RemoteRows` but for the end of a loop. A loop may end, by `break` or an error, while other processes
are elsewhere, so its end waits for none of them: it is *cut*. From then on batches that the user has not trained are
neither pulled, awaited nor pushed, and what still comes of them is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.remote_rows import Pending, RemoteRows
from marius_oac.nodes.shards.routed import routes_of
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Client
from marius_oac.nodes.transport.messages import NEVER_STOP, Message
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import Device
from marius_oac.torch.processes.shard import NO_STEP, Stepped
from marius_oac.types import present


class LoopRows(RemoteRows):
    """The rows of the batches of one loop, from `first` on.

    Args:
        stop: called too where the pipeline stops.
        share: of each process in a batch.
    """

    def __init__(self, source: RemoteSource, first: int, stop: Callable[[], None], share: float):
        super().__init__(source, first, lambda: False)
        self._first, self._stop, self._share = first, stop, share
        self._cut = NEVER_STOP  # batches from here on are not trained
        self._taking = threading.Lock()  # a batch's buffers must stay while rows are put into them

    def cut(self, number: int) -> None:
        """Ends the loop before this batch. Waits for nothing."""
        with self._taking, self._changed:
            self._cut = min(self._cut, number)
            self._changed.notify_all()

    def read(self, batch: Batch) -> None:
        """See `RowExchange.read`."""
        if batch.batch_index < self._cut:
            super().read(batch)

    def _pull(self, number: int, pending: Pending) -> None:
        with self._changed:
            self._pending[number] = pending
        for node in range(len(self._source.connections)):
            asked = [part for route in routes_of(pending.batch) for part in route.asked_of(node)]
            self._send(node, messages.Pull(number, asked))
        self._wait(lambda: not pending.rows or number >= self._cut)

    def validate(self, batch: Batch, safe_to_evict: int) -> None:
        """See `RowExchange.validate`."""
        number = batch.batch_index
        pending = self._pending.get(number)
        self._wait(lambda: number >= self._cut or (pending is not None and not (pending.rows or pending.patches)))
        if number < self._cut:
            super().validate(batch, safe_to_evict)

    def write(self, batch: Batch) -> None:
        """See `RowExchange.write`."""
        number = batch.batch_index
        with self._changed:
            self._pending.pop(number, None)
            if number >= self._cut:
                return
        data: Any = batch.plan.data
        for node in range(len(self._source.connections)):
            frames: list[Any] = []
            for route, step in zip(routes_of(batch), data.steps, strict=True):
                sent: Stepped = step or NO_STEP
                frames += [sent.about, sent.gradients[route.places(node)] if sent.number else b""]
            self._send(node, messages.Push(number, frames, self._share))

    def end(self, timestamp: int) -> None:
        """See `RowExchange.end`. Later news are still taken: `wait_until_applied`."""
        self._wait(lambda: self._cut < NEVER_STOP or min(self._applied) >= timestamp - 1)

    def wait_until_applied(self, number: int, seconds: float) -> None:
        """Waits until every process has all batches up to this one in its rows.

        Raises:
            NodeLost: that takes longer.
        """
        if not self._wait(lambda: min(self._applied) >= number, seconds):
            raise NodeLost("of another rank", f"has not handed back batch {number} within {seconds:g} s")

    def take(self, node: int, message: Message) -> None:
        """See `RemoteExchange.take`."""
        with self._taking:
            if isinstance(message, messages.Rows | messages.Patch) and not (
                self._first <= message.batch_index < self._cut
            ):
                if isinstance(message, messages.Patch):
                    with self._changed:
                        self._applied[node] = max(self._applied[node], message.batch_index - 1)
                        self._changed.notify_all()
                return
            super().take(node, message)

    def _send(self, node: int, message: Message) -> None:
        try:
            super()._send(node, message)
        except InputError as error:
            if error is self._error:
                raise
            raise InputError(error.message, "Engine.batches") from None

    def abort(self) -> None:
        """See `RowExchange.abort`."""
        super().abort()
        self._stop()


class SharedSource(RemoteSource):
    """The rows of all processes, for the loops of one engine, one after another.

    Args:
        own: the place of the connection to this process.

    Attributes:
        loop: the exchange of the loop that is under way, or was the last.
    """

    loop: LoopRows | None = None

    def __init__(self, connections: Sequence[Client], own: int, formats: Sequence[ValueFormat], ahead: int):
        super().__init__(connections, formats, True, ahead, lambda first, last: None, self._abort_connections)
        self._own = own

    def prepare(self, loop: LoopRows) -> None:
        """Makes this the exchange of the next loop."""
        self.loop = self.exchange = loop
        if self.error is not None:
            loop.fail(self.error)

    def begin(self, first: int, last: int, device: Device, stop_requested: Callable[[], bool]) -> LoopRows:
        """See `RowSource.begin`. The exchange is there already."""
        return present(self.loop)

    def told(self, error: BaseException, seconds: float) -> BaseException:
        """Returns why another process is lost, where its own server says so in that time; else the error as it is.

        A process that ends tells the others why, but the end of its connection to this one's server may come before.
        """
        if isinstance(error, NodeLost) and error.__cause__ is None:  # else it is there, and has sent nonsense
            for node, connection in enumerate(self.connections):
                if connection.name == error.node:
                    self.wait_until_over(node, seconds)
        return self.error or error

    def _abort_connections(self) -> None:
        """The other processes wait for this one's batches: they must find it lost, not gone."""
        for place, connection in enumerate(self.connections):
            if place != self._own:
                connection.abort()
