"""The exchange of rows in one run of a trainer's pipeline, with other trainers in lockstep or independent of them.

See `exchange`. Each exchange has one lock; nothing is sent while it is held.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from marius_oac.errors import InputError
from marius_oac.kernels.cpu import shards as kernels
from marius_oac.nodes.parts.batch import PartedBatch, frames_of
from marius_oac.nodes.shards.pending_requests import Waiter
from marius_oac.nodes.shards.routed import routes_of
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Client, Frames
from marius_oac.nodes.transport.messages import NEVER_STOP, Malformed, Message, array
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.rows import RowExchange
from marius_oac.runtime.channel import Closed
from marius_oac.types import Plan


class Source(Protocol):
    """What an exchange needs of `RemoteSource`."""

    connections: Sequence[Client]
    formats: Sequence[ValueFormat]
    lockstep: bool
    ahead: int
    exchange: RemoteExchange | None
    bytes_sent: int

    @property
    def dispatching(self) -> object | None:
        """How batches are dispatched, if they are."""

    def factor(self, plan: Plan[Any], /) -> float:
        """Returns what the learning rate is multiplied by for a plan."""

    def abort(self) -> None:
        """See `RemoteSource.abort`."""

    def finish(self) -> None:
        """Returns when all dispatched batches are in the rows."""


@dataclass
class Pending:
    """A batch between its pull and its push.

    Attributes:
        batch: the batch.
        rows: nodes whose rows have not come.
        patches: nodes that may still send a patch.
        patch: of each patch that has come, for each table: positions in the batch, int64 [k], and values, float32
            [k, D].
    """

    batch: Batch
    rows: set[int]
    patches: set[int]
    patch: list[list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=list)


class RemoteExchange(Waiter, RowExchange):
    """The base of exchanges with other nodes, in one call of `Pipeline.run`."""

    def __init__(self, source: Source):
        super().__init__()
        self._source = source

    def abort(self) -> None:
        """See `RowExchange.abort`."""
        self.fail(Closed("rows on other nodes"))
        self._source.abort()

    @abstractmethod
    def take(self, node: int, message: Message) -> None:
        """Handles a message of node `node`; called by the thread that receives from it."""


class RemoteRows(RemoteExchange):
    """The batches of one call of `Pipeline.run`, from `first` on."""

    def __init__(self, source: Source, first: int, stop_requested: Callable[[], bool]):
        super().__init__(source)
        self._stop_requested = stop_requested
        self._pending: dict[int, Pending] = {}
        self._applied = [first - 1] * len(source.connections)
        self._unapplied = 0  # pushes, where trainers are not in lockstep
        self.stop_at = NEVER_STOP

    def stops_before(self, batch_index: int) -> bool:
        """See `RowExchange.stops_before`."""
        return batch_index >= self.stop_at

    def read(self, batch: Batch) -> None:
        """See `RowExchange.read`."""
        nodes = set(range(len(self._source.connections)))
        self._pull(batch.batch_index, Pending(batch, set(nodes), nodes if self._source.lockstep else set()))

    def _pull(self, number: int, pending: Pending) -> None:
        with self._changed:
            self._pending[number] = pending
        for node in range(len(self._source.connections)):
            asked = [part for route in routes_of(pending.batch) for part in route.asked_of(node)]
            self._send(node, messages.Pull(number, asked))
        self._wait(lambda: not pending.rows)

    def validate(self, batch: Batch, safe_to_evict: int) -> None:
        """See `RowExchange.validate`."""
        pending = self._pending[batch.batch_index]
        self._wait(lambda: not pending.patches)
        for table in range(len(batch.plan.rows)):
            values = batch.rows_in(batch.resident, table)[2]
            for places, newer in (patch[table] for patch in pending.patch):
                batch.replaced += places.size
                if isinstance(values, np.ndarray):
                    kernels.scatter(newer, places, values)
                else:
                    move = [torch.tensor(each).to(values.device) for each in (places, newer)]
                    values[move[0]] = move[1]

    def computed(self, batch: Batch) -> None:
        """See `RowExchange.computed`."""

    def write(self, batch: Batch) -> None:
        """See `RowExchange.write`."""
        plan, source = batch.plan, self._source
        with self._changed:
            del self._pending[batch.batch_index]
            self._unapplied += len(source.connections)
        stop_at = batch.batch_index + source.ahead if self._stop_requested() else NEVER_STOP
        about = plan.data.share, source.factor(plan)
        for node, parts in enumerate(self._gradients(batch)):
            # In lockstep all nodes agree on the end. Otherwise trainers are at different batches, and one node decides.
            asked = stop_at if source.lockstep or node == 0 else NEVER_STOP
            self._send(node, messages.Push(batch.batch_index, parts, *about, asked))

    def _gradients(self, batch: Batch) -> Iterator[list[np.ndarray]]:
        """Yields, for each node, the gradients of its rows of each table."""
        data = batch.plan.data
        if isinstance(data, PartedBatch) and data.sums:
            for node in range(len(self._source.connections)):
                tables = enumerate(routes_of(batch))
                yield [each for table, route in tables for each in frames_of(data.sums, table, route.places(node))]
            return
        every = [np.asarray(batch.rows_in(batch.staging, table)[2]) for table in range(len(batch.plan.rows))]
        for node in range(len(self._source.connections)):
            pairs = zip(every, routes_of(batch), strict=True)
            yield [kernels.spread(each, route.places(node)) for each, route in pairs]

    def end(self, timestamp: int) -> None:
        """See `RowExchange.end`."""
        if self._source.lockstep:
            self._wait(lambda: min(self._applied) >= timestamp - 1)
        else:
            self._wait(lambda: self._unapplied == 0)
        self._source.exchange = None

    def take(self, node: int, message: Message) -> None:
        """See `RemoteExchange.take`."""
        match message:
            case messages.Rows():
                reached = -1
                self._take_rows(node, message, message.values)
            case messages.Patch():
                reached = message.batch_index - 1
                self._take_patch(node, message)
            case messages.Applied():
                reached = message.batch_index
            case _:
                raise Malformed(f"a shard sends no {message.kind.name} here")
        with self._changed:
            self.stop_at = min(self.stop_at, message.stop_at)
            self._unapplied -= isinstance(message, messages.Applied)
            self._applied[node] = max(self._applied[node], reached)
            self._changed.notify_all()

    def _take_rows(self, node: int, message: messages.Rows, frames: Frames) -> None:
        pending = self._known(message)
        batch = pending.batch
        if node not in pending.rows or len(frames) != len(batch.plan.rows):
            raise Malformed(f"rows of batch {message.batch_index} that were not pulled")
        for table, (frame, route) in enumerate(zip(frames, routes_of(batch), strict=True)):
            values, places = np.asarray(batch.rows_in(batch.staging, table)[2]), route.places(node)
            kernels.scatter(self._source.formats[table].received(frame, places.size), places, values)
        with self._changed:
            pending.rows.discard(node)
            if message.final:
                pending.patches.discard(node)

    def _take_patch(self, node: int, message: messages.Patch) -> None:
        pending, frames = self._known(message), message.newer
        if node in pending.rows or node not in pending.patches or len(frames) != 2 * len(pending.batch.plan.rows):
            raise Malformed(f"a patch of batch {message.batch_index} that was not expected")
        patch = []
        for table, route in enumerate(routes_of(pending.batch)):
            places = array(frames[2 * table], np.int64, -1)
            values = self._source.formats[table].received(frames[2 * table + 1], places.size)
            mine = route.places(node)
            if places.size and not 0 <= places.min() <= places.max() < mine.size:
                raise Malformed(f"a patch of rows that batch {message.batch_index} does not have")
            patch.append((mine[places], values))
        with self._changed:
            pending.patch.append(patch)
            pending.patches.discard(node)

    def _known(self, message: messages.OfBatch) -> Pending:
        with self._changed:
            pending = self._pending.get(message.batch_index)
        if pending is None:
            raise Malformed(f"{message.kind.name} of batch {message.batch_index}, which is not pending")
        return pending

    def _send(self, node: int, message: Message) -> None:
        if self._error is not None:
            raise self._error
        frames = message.frames()
        try:
            self._source.connections[node].send(frames)
        except ValueError as error:  # larger than a message may be
            if not isinstance(message, messages.OfBatch):
                raise
            raise InputError(
                f"batch {message.batch_index}: {error}; make batches smaller", "training.batch_size"
            ) from None
        with self._changed:
            self._source.bytes_sent += sum(memoryview(frame).nbytes for frame in frames)
