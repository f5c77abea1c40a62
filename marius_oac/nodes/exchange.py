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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch

from marius_oac.errors import InputError
from marius_oac.nodes import shard_kernels as kernels
from marius_oac.nodes.messages import NEVER_STOP, Kind, Malformed, Message, array, parse
from marius_oac.nodes.questions import Questions, SyncLines
from marius_oac.nodes.shards import Route
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import Device
from marius_oac.pipeline.rows import RowExchange, RowSource
from marius_oac.runtime.channel import Closed
from marius_oac.storage.contract import RowLayout
from marius_oac.types import Plan, Planner


@dataclass(frozen=True)
class RoutedPlan(Plan):
    """A plan that knows where its rows are: a route per table, over the table's rows in the order of `rows`."""

    routes: Sequence[Route] = ()

    @classmethod
    def of(cls, plan: Plan, routes: Sequence[Route], **others: Any) -> RoutedPlan:
        """The plan, routed; `others` take the place of what it has."""
        own = {each.name: getattr(plan, each.name) for each in fields(Plan)}
        return cls(**(own | others), routes=routes)


class RoutedPlanner:
    """Another planner's batches, routed.

    Args:
        planner: its `settle` is not called: what depends on the batches before is the shards' affair.
        routed: a plan with its routes.
    """

    def __init__(self, planner: Planner, routed: Callable[[Plan], RoutedPlan]):
        self._planner, self._routed, self.tables = planner, routed, planner.tables

    def plan(self, sequence: int) -> RoutedPlan:
        return self._routed(self._planner.plan(sequence))

    def settle(self, plan: Plan) -> Plan:
        return plan


class Line(Protocol):
    """What is needed of `transport.Client`."""

    def send(self, frames: Sequence) -> None: ...

    def receive(self) -> Sequence: ...

    def close(self) -> None: ...


@dataclass
class _Pending:
    """A batch between its pull and its push. `rows`: nodes whose rows have not come; `patches`: those that may still
    send one."""

    batch: Batch
    rows: set[int]
    patches: set[int]
    patch: list[Message] = field(default_factory=list)


class NodeSource(RowSource):
    """Rows on some nodes.

    Args:
        lines: to each node that has rows, in the order of the routes. Closed with the source.
        dimensions: floats of a value, of each table.
        lockstep: all trainers compute parts of the same batches.
        ahead: no trainer plans further than that many batches ahead of the one it computes.
        prepare: called before batches from a number on are trained; returns when all nodes are ready for them.
        abort: called when this trainer can't go on: ends what else its threads wait for.
        factor: of a plan: what its learning rate is multiplied with.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        dimensions: Sequence[int],
        lockstep: bool,
        ahead: int,
        prepare: Callable[[int], None],
        abort: Callable[[], None],
        factor: Callable[[Plan], float] = lambda plan: 1.0,
    ):
        self.lines, self.lockstep, self.ahead, self.factor = lines, lockstep, ahead, factor
        self._prepare, self.abort = prepare, abort
        self.layouts = [RowLayout(dimension, 0) for dimension in dimensions]
        self.validates, self.caching = lockstep, False
        self.exchange: NodeRows | None = None
        self.bytes_sent = self.bytes_received = 0
        self.refused: Callable[[], int] = lambda: 0
        """What this process's own server has turned away so far: connections and messages."""
        self.error: BaseException | None = None
        self._questions, self._asked = Questions(), threading.Lock()
        self.sync = SyncLines(self)
        self._threads = [
            threading.Thread(target=self._listen, args=(node,), name=f"node {node}") for node in range(len(lines))
        ]

    def begin(self, first: int, device: Device, stop_requested: Callable[[], bool]) -> NodeRows:
        self._prepare(first)
        self.exchange = NodeRows(self, first, stop_requested)
        if self.error is not None:
            self.exchange.fail(self.error)
        return self.exchange

    def fail(self, error: BaseException) -> None:
        """Every call that waits, now or later, raises this."""
        self.error = self.error or error
        self._questions.fail(error)
        self.sync.questions.fail(error)
        if self.exchange is not None:
            self.exchange.fail(error)

    def look_up(self, table: int, route: Route) -> tuple[np.ndarray, np.ndarray]:
        """Values, float32 [n, D], of what is routed, and whether each was ever trained, bool [n]; while nobody trains.

        Called by one thread at a time.
        """
        values = np.empty((route.order.size, self.layouts[table].dimension), np.float32)
        known = np.empty(route.order.size, np.bool_)
        with self._asked, self._questions.asking(len(self.lines)) as number:
            for node, line in enumerate(self.lines):
                line.send(Message(Kind.LOOK_UP, number, route.asked_of(node), table=table).frames())
            for node, frames in self._questions.answers():
                places = route.places(node)
                values[places] = array(frames[0], np.float32, places.size, values.shape[1])
                known[places] = array(frames[1], np.bool_, places.size)
        return values, known

    def _listen(self, node: int) -> None:
        try:
            while True:
                frames = self.lines[node].receive()
                self.bytes_received += sum(memoryview(frame).nbytes for frame in frames)
                message, rest = parse(frames)
                if message.kind == Kind.FOUND:
                    self._questions.answer(message.sequence, node, rest)
                elif message.kind == Kind.SYNCED:
                    self.sync.questions.answer(message.sequence, node, rest)
                elif self.exchange is not None:
                    self.exchange.take(node, message, rest)
        except BaseException as error:  # whatever it is: those who wait must know
            self.fail(error)

    def __enter__(self) -> NodeSource:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for line in self.lines:
            line.close()
        for thread in self._threads:
            thread.join()


class NodeRows(RowExchange):
    """The batches of one call of `Pipeline.run`."""

    def __init__(self, source: NodeSource, first: int, stop_requested: Callable[[], bool]):
        self._source, self._stop_requested = source, stop_requested
        self._changed = threading.Condition()
        self._pending: dict[int, _Pending] = {}
        self._applied = [first - 1] * len(source.lines)
        self._unapplied = 0  # pushes, where trainers go freely
        self._error: BaseException | None = None
        self.stop_at = NEVER_STOP

    def stops_before(self, sequence: int) -> bool:
        return sequence >= self.stop_at

    def read(self, batch: Batch) -> None:
        nodes, routes = range(len(self._source.lines)), batch.plan.routes
        patches = set(nodes) if self._source.lockstep else set()
        with self._changed:
            self._pending[batch.sequence] = _Pending(batch, set(nodes), patches)
        for node in nodes:
            asked = [part for route in routes for part in route.asked_of(node)]
            self._send(node, Message(Kind.PULL, batch.sequence, asked))
        self._wait(lambda: not self._pending[batch.sequence].rows)

    def validate(self, batch: Batch, safe_to_evict: int) -> None:
        pending = self._pending[batch.sequence]
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
        return

    def write(self, batch: Batch) -> None:
        plan, source = batch.plan, self._source
        with self._changed:
            del self._pending[batch.sequence]
            self._unapplied += len(source.lines)
        stop_at = batch.sequence + source.ahead if self._stop_requested() else NEVER_STOP
        about = {"share": float(plan.arrays["share"].item()), "factor": source.factor(plan)}
        gradients = [np.asarray(batch.rows_in(batch.staging, table)[2]) for table in range(len(plan.rows))]
        for node in range(len(source.lines)):
            pairs = zip(gradients, plan.routes, strict=True)
            parts = [kernels.spread(each, route.places(node)) for each, route in pairs]
            # In lockstep all nodes say when; else the first one does, for trainers are anywhere.
            asked = stop_at if source.lockstep or node == 0 else NEVER_STOP
            self._send(node, Message(Kind.PUSH, batch.sequence, parts, stop_at=asked, **about))

    def end(self, timestamp: int) -> None:
        if self._source.lockstep:
            self._wait(lambda: min(self._applied) >= timestamp - 1)
        else:
            self._wait(lambda: self._unapplied == 0)
        self._source.exchange = None

    def abort(self) -> None:
        self.fail(Closed("rows on other nodes"))
        self._source.abort()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def take(self, node: int, message: Message, frames: Sequence) -> None:
        """What node `node` says; called by its thread."""
        if message.kind == Kind.ROWS:
            self._take_rows(node, message, frames)
        elif message.kind == Kind.PATCH:
            self._take_patch(node, message, frames)
        elif message.kind != Kind.APPLIED:
            raise Malformed(f"a shard sends no {message.kind.name}")
        with self._changed:
            self.stop_at = min(self.stop_at, message.stop_at)
            if message.kind == Kind.APPLIED:
                self._unapplied -= 1
            if message.kind != Kind.ROWS:
                reached = message.sequence - (message.kind == Kind.PATCH)
                self._applied[node] = max(self._applied[node], reached)
            self._changed.notify_all()

    def _take_rows(self, node: int, message: Message, frames: Sequence) -> None:
        pending = self._known(message)
        batch = pending.batch
        if node not in pending.rows or len(frames) != len(batch.plan.rows):
            raise Malformed(f"rows of batch {message.sequence} that nobody asked for")
        for table, (frame, route) in enumerate(zip(frames, batch.plan.routes, strict=True)):
            values, places = np.asarray(batch.rows_in(batch.staging, table)[2]), route.places(node)
            kernels.scatter(array(frame, np.float32, places.size, values.shape[1]), places, values)
        with self._changed:
            pending.rows.discard(node)
            if message.final:
                pending.patches.discard(node)

    def _take_patch(self, node: int, message: Message, frames: Sequence) -> None:
        pending = self._known(message)
        if node in pending.rows or node not in pending.patches or len(frames) != 2 * len(pending.batch.plan.rows):
            raise Malformed(f"a patch of batch {message.sequence} that nobody waits for")
        patch = []
        for table, route in enumerate(pending.batch.plan.routes):
            places = array(frames[2 * table], np.int64, -1)
            values = array(frames[2 * table + 1], np.float32, places.size, self._source.layouts[table].dimension)
            mine = route.places(node)
            if places.size and not 0 <= places.min() <= places.max() < mine.size:
                raise Malformed(f"a patch of rows that batch {message.sequence} does not have")
            patch.append((mine[places], values))
        with self._changed:
            pending.patch.append(patch)
            pending.patches.discard(node)

    def _known(self, message: Message) -> _Pending:
        with self._changed:
            pending = self._pending.get(message.sequence)
        if pending is None:
            raise Malformed(f"{message.kind.name} of batch {message.sequence}, which is not on its way")
        return pending

    def _send(self, node: int, message: Message) -> None:
        if self._error is not None:
            raise self._error
        frames = message.frames()
        try:
            self._source.lines[node].send(frames)
        except ValueError as error:  # larger than a message may be
            raise InputError(
                f"batch {message.sequence}: {error}; make batches smaller", "training.batch_size"
            ) from None
        with self._changed:
            self._source.bytes_sent += sum(memoryview(frame).nbytes for frame in frames)

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or ready())
            if self._error is not None:
                raise self._error
