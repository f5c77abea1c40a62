"""The trainer's side of modes that dispatch batches (`modes`): reserves batches, pulls rows and dense parameters.

    assign_rows  RESERVE asks for the next batch, which is planned and routed                          `RoutedPlanner`
    read         waits until fewer than `window` batches are between pull and push, sends ENTER, waits for the token,
                 sends a pull to every node
    validate     copies the dense parameters that came with the rows into the step's
    compute      the step overwrites rows by their gradients, and hands over those of dense parameters
    write        sends a push with the token to every node; when all have taken it, sends DONE

Guarantees:
- A trainer computes its batches in the order of their dispatch; at most `window` are between pull and push.
- `end` returns when no batch is left or outstanding at any trainer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.gba.modes import Mode
from marius_oac.nodes.shards.remote_rows import Pending, RemoteRows, Source
from marius_oac.nodes.shards.routed import number_of
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.messages import Malformed, Message, array
from marius_oac.pipeline.batch import Batch
from marius_oac.types import ServedDense, present

COORDINATOR = 0
"""The node that dispatches batches: the first that has rows."""
_ENDLESS = 2**62
_A_LOOK = 0.2  # seconds between two looks of an idle elastic worker whether the user wants to stop


@dataclass(frozen=True)
class Dispatching:
    """How batches are dispatched.

    Attributes:
        mode: the rules.
        parts: batches that a global batch is cut into.
        bounds: of the slices of the dense parameters, int [nodes + 1].
        carriers: ranks of the processes of these nodes.
        dense: takes this trainer's dense parameters and has their gradients.
        served: nodes copy their slices from it; None: there are no dense parameters.
        window: batches of a trainer between pull and push.
        own: number of the run's own processes; peers from that number on are elastic workers.
        elastic_worker: whether this trainer is one: it may leave at any time, and nobody waits for it.
    """

    mode: Mode
    parts: int
    bounds: Sequence[int]
    carriers: Sequence[int]
    dense: AllReduce
    served: ServedDense | None
    window: int = 1
    own: int = 0
    elastic_worker: bool = False


class DispatchedRows(RemoteRows):
    """The batches that are dispatched to a trainer in one call of `Pipeline.run`.

    Args:
        source: has the connections.
        first: the number of the first batch in the trainer's pipeline, and of the first global batch.
        stop_requested: returns whether the user wants to stop.
        dispatching: how batches are dispatched.
    """

    def __init__(self, source: Source, first: int, stop_requested: Callable[[], bool], dispatching: Dispatching):
        super().__init__(source, first, stop_requested)
        self._dispatching, self._first, self._entered, self._written = dispatching, first, 0, 0
        self._last_dispatched = first * dispatching.parts
        self._dispatched: deque[int | None] = deque()
        self._tokens: dict[int, int] = {}
        self._values: dict[int, np.ndarray] = {}
        self._handed: dict[int, np.ndarray] = {}
        self._taken: dict[int, dict[int, int]] = {}  # of batches that are pushed: the steps of the shards that have it
        self._through = False
        self._next: int | None = None

    def planned_until(self, last: int) -> int:
        """See `RowExchange.planned_until`."""
        return _ENDLESS

    def position(self, number: int) -> int:
        """See `RowExchange.position`."""
        return self._last_dispatched // self._dispatching.parts

    def reached(self, planned: int) -> int:
        """See `RowExchange.reached`."""
        return present(self._next) // self._dispatching.parts

    def stops_before(self, batch_index: int) -> bool:
        """See `RowExchange.stops_before`."""
        return self._through

    def reserve(self) -> int | None:
        """Reserves the next batch of the data list and returns its number; None: none is left. One thread calls it."""
        if self._through:
            return None
        elastic = self._dispatching.elastic_worker
        self._send(COORDINATOR, messages.Reserve(self._stop_requested() and not elastic))
        while not self._wait(lambda: self._dispatched, _A_LOOK if elastic else None):
            if self._stop_requested():
                self._through, self._next = True, 0
                return None
        number = self._dispatched.popleft()
        self._through = number is None
        self._last_dispatched = self._last_dispatched if number is None else number
        return number

    def read(self, batch: Batch) -> None:
        """See `RowExchange.read`."""
        number, dispatching = number_of(batch), self._dispatching
        place = batch.batch_index - self._first
        self._wait(lambda: place == self._entered and place < self._written + dispatching.window)  # one after the other
        self._send(COORDINATOR, messages.Enter(number, batch.plan.examples))
        self._wait(lambda: number in self._tokens)
        with self._changed:
            self._entered += 1
            self._changed.notify_all()
        self._values[number] = np.empty(dispatching.bounds[-1], np.float32)
        self._pull(number, Pending(batch, set(range(len(self._source.connections))), set()))

    def validate(self, batch: Batch, safe_to_evict: int) -> None:
        """See `RowExchange.validate`."""
        values = self._values.pop(number_of(batch))
        if values.size:
            self._dispatching.dense.lay(values)

    def computed(self, batch: Batch) -> None:
        """See `RowExchange.computed`."""
        handed = self._dispatching.dense.handed()
        if handed is not None:
            self._handed[number_of(batch)] = handed

    def write(self, batch: Batch) -> None:
        """See `RowExchange.write`."""
        number, plan, dispatching = number_of(batch), batch.plan, self._dispatching
        share, handed = plan.data.share, self._handed.pop(number, None)
        token, factor = self._tokens.pop(number), self._source.factor(plan)
        with self._changed:
            del self._pending[number]
            self._taken[number] = {}
        for node, parts in enumerate(self._gradients(batch)):
            if handed is not None:
                first, end = dispatching.bounds[node], dispatching.bounds[node + 1]
                parts.append(np.concatenate([handed[first:end], handed[-1:]]))
            weighted = self._weighted(parts, share, handed is not None)
            self._send(node, messages.Push(number, weighted, share, factor, token=token))
        with self._changed:
            self._written += 1
            self._changed.notify_all()
        taken = self._taken[number]
        self._wait(lambda: len(taken) == len(self._source.connections))
        del self._taken[number]
        steps = np.array([taken[node] for node in range(len(taken))], np.int64)
        self._send(COORDINATOR, messages.Done(number, steps, np.array([batch.loss], np.float64)))

    def end(self, timestamp: int) -> None:
        """See `RowExchange.end`."""
        self._wait(lambda: self._next is not None)
        self._source.finish()
        self._source.exchange = None

    def take(self, node: int, message: Message) -> None:
        """See `RemoteExchange.take`."""
        if isinstance(message, messages.Rows):
            frames = message.values
            if self._dispatching.bounds[-1] and node in self._known(message).rows:
                *frames, dense = frames or [b""]
                first, end = self._dispatching.bounds[node], self._dispatching.bounds[node + 1]
                self._values[message.batch_index][first:end] = array(dense, np.float32, end - first)
            self._take_rows(node, message, frames)
        with self._changed:
            match message:
                case messages.Rows():
                    pass
                case messages.Dispatch():
                    self._dispatched.append(None if message.final else message.batch_index)
                case messages.Token():
                    self._tokens[message.batch_index] = message.token
                case messages.Applied() if message.batch_index in self._taken:
                    self._taken[message.batch_index][node] = message.step
                case messages.Finished():
                    self._next = message.batch_index
                case _:
                    raise Malformed(f"{message.kind.name} is not sent to a trainer to which batches are dispatched")
            self._changed.notify_all()

    def _weighted(self, parts: list[np.ndarray], share: float, dense: bool) -> list[np.ndarray]:
        """Weights gradients by the part's number of examples, relative to the mean of the parts of a global batch."""
        weight = np.float32(share * self._dispatching.parts)
        if weight == 1:
            return parts
        factor = parts[-1][-1:].copy() if dense else None
        weighted = [part * weight for part in parts]
        if dense:
            weighted[-1][-1:] = factor
        return weighted
