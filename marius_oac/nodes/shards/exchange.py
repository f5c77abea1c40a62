"""The trainer's side of rows that lie on other nodes: pulls ahead, patches, pushes.

    plan      the batch's rows are routed: which node is asked for which of them         `RoutedPlanner`
    read      a pull to every node; its rows go straight into the batch's buffer
    validate  wait until every node has applied the batch before; its patch is laid over the buffer
    compute   the step leaves gradients in the place of values
    write     a push to every node

Guarantees:
- `begin` returns a fresh exchange; `end` returns when every node has applied every batch. One is in use at a time.
- One thread per node receives, from `__enter__` to `__exit__` of the source, which leaves none of them.
- The first error of any of them is raised by every call that waits, then and later; so is `Closed` after `abort`.

Locks: one per exchange; nothing is sent while it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from marius_oac.nodes.shards.dispatched_rows import DispatchedRows, Dispatching
from marius_oac.nodes.shards.no_rows import NoRows
from marius_oac.nodes.shards.pending_requests import PendingRequests, SyncConnections
from marius_oac.nodes.shards.placement import Route
from marius_oac.nodes.shards.remote_rows import RemoteRows
from marius_oac.nodes.transport.messages import Kind, Message, array, parse
from marius_oac.pipeline.device import Device
from marius_oac.pipeline.rows import RowExchange, RowSource
from marius_oac.storage.contract import RowLayout
from marius_oac.types import Plan


class Line(Protocol):
    """What is needed of `transport.Client`."""

    def send(self, frames: Sequence) -> None: ...

    def receive(self) -> Sequence: ...

    def close(self) -> None: ...


class RemoteSource(RowSource):
    """Rows on some nodes.

    Args:
        lines: to each node that has rows, in the order of the routes. Closed with the source.
        dimensions: floats of a value, of each table.
        lockstep: all trainers compute parts of the same batches.
        ahead: no trainer plans further than that many batches ahead of the one it computes.
        prepare: called before batches [first, last) are trained; returns when all nodes are ready for them.
        abort: called when this trainer can't go on: ends what else its threads wait for.
        factor: of a plan: what its learning rate is multiplied with.
        finish: called where batches are dispatched, when none is left or out; returns when all that were are in the
            rows.
        bind: called by each thread that receives, with "receive", before its first message.
    """

    def __init__(
        self,
        connections: Sequence[Line],
        dimensions: Sequence[int],
        lockstep: bool,
        ahead: int,
        prepare: Callable[[int, int], None],
        abort: Callable[[], None],
        factor: Callable[[Plan], float] = lambda plan: 1.0,
        finish: Callable[[], None] = lambda: None,
        bind: Callable[[str], object] = lambda role: None,
    ):
        self.connections, self.lockstep, self.ahead, self.factor = connections, lockstep, ahead, factor
        self._prepare, self._abort, self.finish, self._bind = prepare, abort, finish, bind
        self.layouts = [RowLayout(dimension, 0) for dimension in dimensions]
        self.caching = False
        self.trains = True
        """Whether this process has batches of its own; else it only serves rows."""
        self.dispatching: Dispatching | None = None
        """How batches are dispatched from the next `begin` on; None: they are not."""
        self.exchange: RemoteRows | NoRows | None = None
        self.bytes_sent = self.bytes_received = 0
        self.refused: Callable[[], int] = lambda: 0
        """What this process's own server has turned away so far: connections and messages."""
        self.counts: Callable[[], Mapping[str, float]] = dict
        """What this process's own shard has counted (`ShardServer.counts`)."""
        self.announce: Callable[[Mapping[str, Any]], None] = lambda run: None
        """Tells elastic workers what run this is, in plain values."""
        self.reconcile: Callable[[Message, Sequence], None] | None = None
        """Does what the coordinator says of elastic workers that are gone, at this process's own shard, and answers."""
        self.error: BaseException | None = None
        self._errors: list[BaseException] = []  # of each line that is over
        self.stopped = threading.Event()
        """Set when this trainer can't go on."""
        self._pending_requests, self._asked = PendingRequests(), threading.Lock()
        self.sync = SyncConnections(self)
        self._threads = [
            threading.Thread(target=self._listen, args=(node,), name=f"node {node}") for node in range(len(connections))
        ]

    @property
    def validates(self) -> bool:
        return self.lockstep or self.dispatching is not None

    def begin(self, first: int, last: int, device: Device, stop_requested: Callable[[], bool]) -> RowExchange:
        self._prepare(first, last)
        if not self.trains:
            self.exchange = NoRows(self, first)
        elif self.dispatching is None:
            self.exchange = RemoteRows(self, first, stop_requested)
        else:
            self.exchange = DispatchedRows(self, first, stop_requested, self.dispatching)
        if self.error is not None:
            self.exchange.fail(self.error)
        return self.exchange

    def abort(self) -> None:
        """Ends what this trainer's threads wait for."""
        self.stopped.set()
        self._abort()

    def fail(self, error: BaseException) -> None:
        """Every call that waits, now or later, raises this."""
        self.error = self.error or error
        self.stopped.set()
        self._pending_requests.fail(error)
        self.sync.pending_requests.fail(error)
        if self.exchange is not None:
            self.exchange.fail(error)

    def look_up(self, table: int, route: Route) -> tuple[np.ndarray, np.ndarray]:
        """Values, float32 [n, D], of what is routed, and whether each was ever trained, bool [n]; while nobody trains.

        Called by one thread at a time.
        """
        values = np.empty((route.order.size, self.layouts[table].dimension), np.float32)
        known = np.empty(route.order.size, np.bool_)
        with self._asked, self._pending_requests.asking(len(self.connections)) as number:
            for node, line in enumerate(self.connections):
                line.send(Message(Kind.LOOK_UP, number, route.asked_of(node), table=table).frames())
            for node, frames in self._pending_requests.answers():
                places = route.places(node)
                values[places] = array(frames[0], np.float32, places.size, values.shape[1])
                known[places] = array(frames[1], np.bool_, places.size)
        return values, known

    def dense_states(self) -> list[np.ndarray]:
        """`DenseSlice.state` of each node, by all nodes; while nobody trains.

        Called by one thread at a time.
        """
        found = [np.zeros(0, np.float32)] * len(self.connections)
        with self._asked, self._pending_requests.asking(len(self.connections)) as number:
            for line in self.connections:
                line.send(Message(Kind.DENSE, number).frames())
            for node, frames in self._pending_requests.answers():
                found[node] = array(frames[0], np.float32, -1)
        return found

    def _listen(self, node: int) -> None:
        try:
            self._bind("receive")
            while True:
                frames = self.connections[node].receive()
                self.bytes_received += sum(memoryview(frame).nbytes for frame in frames)
                message, rest = parse(frames)
                if message.kind == Kind.FOUND:
                    self._pending_requests.answer(message.batch_index, node, rest)
                elif message.kind == Kind.SYNCED:
                    self.sync.pending_requests.answer(message.batch_index, node, rest)
                elif message.kind in (Kind.REFUSE, Kind.FILL) and self.reconcile is not None:
                    self.reconcile(message, rest)
                elif self.exchange is not None:
                    self.exchange.take(node, message, rest)
        except BaseException as error:  # whatever it is: those who wait must know
            self._errors.append(error)
            self.fail(error)

    def until_all_are_over(self) -> Sequence[BaseException]:
        """Waits until every node has ended its line, or is lost; what each of them has ended with."""
        for thread in self._threads:
            thread.join()
        return self._errors

    def __enter__(self) -> RemoteSource:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for line in self.connections:
            line.close()
        for thread in self._threads:
            thread.join()
