"""The trainer's side of rows on other nodes: pulls ahead, patches, pushes.

    plan      routes the batch's rows: which node is asked for which of them         `RoutedPlanner`
    read      sends a pull to every node; the rows go straight into the batch's buffer
    validate  waits until every node has applied the batch before, and copies the patches into the buffer
    compute   the step overwrites values by gradients
    write     sends a push to every node

Guarantees:
- `begin` returns a new exchange; `end` returns when every node has applied every batch. One is in use at a time.
- One thread receives from all nodes, from `__enter__` to `__exit__` of the source, which leaves no thread. It waits for
  nothing but messages: what waits for this process's own shard (`reconcile`) has a thread of its own, since that shard
  may wait until this trainer receives.
- The first error of any thread is raised by every waiting and later call; after `abort` these raise `Closed`. A node
  that sends what does not fit (`Malformed`) is lost. The others are received from until they are over.

Each exchange has one lock; nothing is sent while it is held.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np

from marius_oac.errors import NodeLost
from marius_oac.nodes.shards.dispatched_rows import DispatchedRows, Dispatching
from marius_oac.nodes.shards.no_rows import NoRows
from marius_oac.nodes.shards.pending_requests import PendingRequests, SyncConnections
from marius_oac.nodes.shards.remote_rows import RemoteExchange, RemoteRows
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Client, Frames, nonsense
from marius_oac.nodes.transport.messages import Malformed, Message, array, parse
from marius_oac.nodes.transport.receiver import Receiver
from marius_oac.pipeline.device import Device
from marius_oac.pipeline.rows import RowExchange, RowSource
from marius_oac.runtime.workers import join
from marius_oac.storage.backing import IN_MEMORY, Backing
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.placement import Route
from marius_oac.types import Plan, present


class RemoteSource(RowSource):
    """The rows of other nodes, as a pipeline's source.

    Args:
        connections: to each node that has rows, in the order of the routes. Closed with the source.
        formats: of the values of each table's rows.
        lockstep: whether all trainers compute parts of the same batches.
        ahead: no trainer plans further than that many batches ahead of the one it computes.
        prepare: called before batches [first, last) are trained; returns when all nodes are ready for them.
        abort: called when this trainer can't go on: ends everything else that its threads wait for.
        factor: returns what the learning rate is multiplied by for a plan.
        finish: called where batches are dispatched, when none is left or outstanding; returns when all are in the rows.
        bind: called by the thread that receives, with "receive", before its first message.
        served: what brings the rows that this process serves.
    """

    def __init__(
        self,
        connections: Sequence[Client],
        formats: Sequence[ValueFormat],
        lockstep: bool,
        ahead: int,
        prepare: Callable[[int, int], None],
        abort: Callable[[], None],
        factor: Callable[[Plan[Any]], float] = lambda plan: 1.0,
        finish: Callable[[], None] = lambda: None,
        bind: Callable[[str], object] = lambda role: None,
        served: Backing = IN_MEMORY,
    ):
        self.connections, self.lockstep, self.ahead, self.factor = connections, lockstep, ahead, factor
        self._prepare, self._abort, self.finish, self._bind, self._served = prepare, abort, finish, bind, served
        self.formats, self.layouts = formats, [RowLayout(each.dimension, 0) for each in formats]
        self.caching, self.validates = False, lockstep
        self.trains = True
        """Whether this process has batches of its own; otherwise it only serves rows."""
        self.dispatching: Dispatching | None = None
        """How batches are dispatched from the next `begin` on; None: they are not."""
        self.exchange: RemoteExchange | None = None
        self.bytes_sent = self.bytes_received = 0
        self.refused: Callable[[], int] = lambda: 0
        """Returns how many connections and messages this process's own server has refused so far."""
        self.counts: Callable[[], Mapping[str, float]] = dict
        """Returns the counts of this process's own shard (`ShardServer.counts`)."""
        self.announce: Callable[[Mapping[str, Any]], None] = lambda run: None
        """Sends elastic workers a description of the run, in plain values."""
        self.reconcile: Callable[[messages.Refuse | messages.Fill], None] | None = None
        """Has this process's own shard handle a REFUSE or FILL of the coordinator, and sends the answer."""
        self.error: BaseException | None = None
        self._errors: list[BaseException] = []  # of each connection that is over
        self.stopped = threading.Event()
        """Set when this trainer can't go on."""
        self._pending_requests, self._asked = PendingRequests[messages.Found](), threading.Lock()
        self.sync = SyncConnections(connections)
        self.reading = PendingRequests[messages.Examples]()
        """Requests for examples that other trainers have read."""
        self.server: ShardServer | None = None
        """Of this process; None: it carries no rows."""
        self._receiving = threading.Thread(target=self._listen, name="nodes")
        self._over = [threading.Event() for _ in connections]
        self._to_reconcile = queue.SimpleQueue[tuple[int, messages.Refuse | messages.Fill] | None]()
        self._reconciling = threading.Thread(target=self._reconcile, name="reconciliation")

    def begin(self, first: int, last: int, device: Device, stop_requested: Callable[[], bool]) -> RowExchange:
        """See `RowSource.begin`."""
        self.validates = self.lockstep or self.dispatching is not None
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

    def metrics(self) -> dict[str, float]:
        """See `RowSource.metrics`."""
        return self._served.metrics()

    def abort(self) -> None:
        """Ends everything that this trainer's threads wait for."""
        self.stopped.set()
        self._abort()

    def fail(self, error: BaseException) -> None:
        """Makes every waiting and later call raise this error."""
        self.error = self.error or error
        self.stopped.set()
        self._pending_requests.fail(error)
        self.sync.pending_requests.fail(error)
        self.reading.fail(error)
        if self.exchange is not None:
            self.exchange.fail(error)

    def look_up(self, table: int, route: Route) -> tuple[np.ndarray, np.ndarray]:
        """Returns values, float32 [n, D], and whether each was ever trained, bool [n], in the order of the routed rows.

        Called by one thread at a time, while no trainer trains.
        """
        values = np.empty((route.order.size, self.layouts[table].dimension), np.float32)
        known = np.empty(route.order.size, np.bool_)
        with self._asked, self._pending_requests.asking(len(self.connections)) as number:
            for node, connection in enumerate(self.connections):
                connection.send(messages.LookUp(number, table, route.asked_of(node)).frames())
            for node, answer in self._pending_requests.answers():
                places = route.places(node)
                with self.said_by(node):
                    values[places] = array(answer.values, np.float32, places.size, values.shape[1])
                    known[places] = array(b"" if answer.known is None else answer.known, np.bool_, places.size)
        return values, known

    def dense_states(self) -> list[np.ndarray]:
        """Returns `DenseSlice.state` of each node, float32 [n].

        Called by one thread at a time, while no trainer trains.
        """
        found = [np.zeros(0, np.float32)] * len(self.connections)
        with self._asked, self._pending_requests.asking(len(self.connections)) as number:
            for connection in self.connections:
                connection.send(messages.Dense(number).frames())
            for node, answer in self._pending_requests.answers():
                found[node] = answer.values
        return found

    def _listen(self) -> None:
        try:
            self._bind("receive")
            with closing(Receiver(self.connections)) as receiver:
                while (arrival := receiver.receive()) is not None:
                    if arrival.frames is None:
                        self._ended(arrival.number, present(arrival.error))
                    elif not self._over[arrival.number].is_set():
                        self._heard(arrival.number, arrival.frames)
        except BaseException as error:  # whatever it is, waiting calls must end
            for node, over in enumerate(self._over):
                if not over.is_set():
                    self._ended(node, error)

    def _heard(self, node: int, frames: Frames) -> None:
        try:
            with self.said_by(node):
                message = parse(frames)
                if not isinstance(message, messages.Examples):
                    self.bytes_received += sum(memoryview(frame).nbytes for frame in frames)
                self._take(node, message)
        except BaseException as error:  # whatever it is, waiting calls must end
            self._ended(node, error)

    def _ended(self, node: int, error: BaseException) -> None:
        if not self._over[node].is_set():
            self._errors.append(error)
            self.fail(error)
            self._over[node].set()

    def _take(self, node: int, message: Message) -> None:
        match message:
            case messages.Found():
                self._pending_requests.answer(node, message)
            case messages.Synced():
                self.sync.pending_requests.answer(node, message)
            case messages.Examples():
                self.reading.answer(node, message)
            case messages.Refuse() | messages.Fill() if self.reconcile is not None:
                self._to_reconcile.put((node, message))
            case _ if self.exchange is not None:
                self.exchange.take(node, message)

    def _reconcile(self) -> None:
        while (told := self._to_reconcile.get()) is not None:
            node, message = told
            try:
                with self.said_by(node):
                    present(self.reconcile)(message)
            except BaseException as error:  # whatever it is, waiting calls must end
                self._ended(node, error)

    @contextmanager
    def said_by(self, node: int) -> Iterator[None]:
        """Within the block, `Malformed` becomes the loss of the node that sent it."""
        try:
            yield
        except Malformed as error:
            raise NodeLost(self.connections[node].name, nonsense(error)) from error

    def until_all_are_over(self) -> Sequence[BaseException]:
        """Waits until the connection to every node is over; returns the error of each."""
        for over in self._over:
            over.wait()
        return self._errors

    def wait_until_over(self, node: int, seconds: float) -> None:
        """Waits, for so many seconds at most, until the connection to this node is over."""
        self._over[node].wait(seconds)

    def __enter__(self) -> RemoteSource:
        try:
            self._receiving.start()
            if self.reconcile is not None:
                self._reconciling.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # no thread is left even if a connection can't be closed
            stack.callback(join, self._reconciling)
            stack.callback(self._to_reconcile.put, None)  # after the receiving thread, which puts others
            stack.callback(join, self._receiving)
            for connection in reversed(self.connections):
                stack.callback(connection.close)
