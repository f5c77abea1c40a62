"""A node's rows and slice of the dense parameters in modes that dispatch batches (`modes`): a state machine.

    pull     returns the rows that the trainer asks for, and the slice, as they are; no patch follows
    push     adds gradients with a token to the aggregators of the tables and of the slice, which count alike; when they
             have the gradients of a global step, the optimizers run, once per row and once on the slice
    dense    returns the slice with the optimizer's state

The first shard's node is also the coordinator (`gba.dispatch_server`).

Guarantees:
- The result of a step is a function of the order in which pushes came.
- `flush` ends the last step with the gradients that it has. After it every batch that was taken is in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.nodes.gba.aggregator import DenseAggregator, RowAggregator, Tags
from marius_oac.nodes.gba.coordinator import Coordinator
from marius_oac.nodes.gba.counts import add_counts
from marius_oac.nodes.gba.dispatch_server import DispatchServer, Handled
from marius_oac.nodes.gba.dispatcher import Dispatcher
from marius_oac.nodes.gba.modes import Clock, Mode
from marius_oac.nodes.shards.dispatched_rows import COORDINATOR, Dispatching
from marius_oac.nodes.shards.shard import Out, Shard
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.messages import Malformed, Message, array
from marius_oac.types import DenseSlice, present

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class BatchRange:
    """Global batches [first, last), which are dispatched in one mode.

    Attributes:
        mode: the rules.
        parts: M, batches of the data list that a global batch is cut into: part p of batch n is number n * M + p.
    """

    mode: Mode
    parts: int
    first: int
    last: int

    @property
    def clock(self) -> Clock:
        """Converts between steps and timestamps of these batches."""
        return Clock(self.mode, self.parts, self.first)


def make_dispatched_shard(
    tables: Sequence[ShardTable],
    trainers: int,
    ahead: int,
    dispatching: Dispatching,
    batch_range: tuple[int, int],
    place: int,
) -> DispatchedShard:
    """Returns the shard of node number `place` of those that have rows, for global batches [first, last)."""
    shards, bounds = len(dispatching.bounds) - 1, dispatching.bounds
    found = BatchRange(dispatching.mode, dispatching.parts, *batch_range)
    server = None
    if place == COORDINATOR:
        dispatcher = Dispatcher(found.mode, found.first * found.parts, found.last * found.parts, found.first)
        for rank in range(trainers):  # the slowest is waited for, also if it has not come yet
            dispatcher.joined(rank)
        coordinator = Coordinator(dispatcher, shards)
        server = DispatchServer(coordinator, dispatching.carriers, found.parts, trainers, dispatching.own)
    own = dispatching.served.slice(bounds[place], bounds[place + 1]) if dispatching.served else None
    return DispatchedShard(tables, trainers, ahead, found, own, server)


class DispatchedShard(Shard):
    """Answers pulls and pushes of dispatched batches.

    Args:
        tables: rows of each table.
        trainers: number of trainers that pull and push.
        ahead: a trainer has pulled at most so many batches that it has not pushed.
        batch_range: the batches that are dispatched.
        dense: the slice of the dense parameters; None: there is none here.
        dispatch_server: on the coordinator's node; None on others.
    """

    def __init__(
        self,
        tables: Sequence[ShardTable],
        trainers: int,
        ahead: int,
        batch_range: BatchRange,
        dense: DenseSlice | None = None,
        dispatch_server: DispatchServer | None = None,
    ):
        super().__init__(tables, trainers, False, None, ahead)
        mode, self._clock = batch_range.mode, batch_range.clock
        self._slice, self.dispatch_server = dense, dispatch_server
        size, begin = 0 if dense is None else dense.values().size, batch_range.first
        about = begin, begin * batch_range.parts
        self._dense = DenseAggregator(mode, size, *about)
        self._rows = [RowAggregator(mode, table.dimension, self._tags(table), *about) for table in tables]
        self._factor, self._epoch = 1.0, 0

    def handle(self, peer: int, message: Message) -> list[Out]:
        """See `Shard.handle`."""
        if isinstance(message, Handled) and self.dispatch_server is not None:
            return self.dispatch_server.handle(peer, message)
        if isinstance(message, messages.Dense) and self._slice is not None:
            return [(peer, messages.Found(message.number, self._slice.state()))]
        return super().handle(peer, message)

    def flush(self) -> None:
        """Ends the current step, if it has gradients; called when no push is under way any more."""
        self._finish(self._dense.flush(), [each.flush() for each in self._rows])

    def gone(self, peer: int) -> list[Out]:
        """See `Shard.gone`; also forgets the worker's pulls."""
        for place in [each for each in self._pulls if each[0] == peer]:
            self._taken(place)
        return self.dispatch_server.gone(peer) if self.dispatch_server else []

    def refuse(self, batches: Sequence[int]) -> tuple[list[bool], int]:
        """Refuses these batches from now on; returns which of them were settled before, and the step."""
        found = []
        for batch in batches:
            settled = self._dense.refuse(batch)
            for each in self._rows:
                each.refuse(batch)
            found.append(settled)
        return found, self._dense.step

    def fill(self, tokens: Sequence[int]) -> int:
        """Fills the slots of batches that only other shards have with no gradient; returns the step."""
        for token in tokens:
            self._finish(self._dense.fill(token), [each.fill(token) for each in self._rows])
        return self._dense.step

    def metrics(self) -> dict[str, float]:
        """Returns `Aggregator.metrics`, as `rows.*` of all tables and, on the coordinator's node, `dense.*`, with
        `DispatchServer.metrics`."""
        rows = add_counts(*(each.metrics() for each in self._rows))
        found = {f"rows.{name}": value for name, value in rows.items()}
        if self.dispatch_server is None:
            return found
        dense = {f"dense.{name}": value for name, value in self._dense.metrics().items()}
        return dense | found | self.dispatch_server.metrics()

    def _tags(self, table: ShardTable) -> Tags:
        return lambda rows: self._clock.steps(table.timestamps(rows))

    def _pull(self, peer: int, message: messages.Pull) -> list[Out]:
        if (peer, message.batch_index) in self._pulls:
            raise Malformed(f"batch {message.batch_index} is pulled again")
        if self._begun[peer] >= self._ahead:
            raise Malformed("a batch that is too far ahead is pulled")
        rows = self._served(peer, message.batch_index, self._asked(message.asked))
        self._begun[peer] += 1
        dense = [] if self._slice is None else [self._slice.values().copy()]
        return [(peer, messages.Rows(rows.batch_index, [*rows.values, *dense], rows.final, rows.stop_at))]

    def _push(self, peer: int, message: messages.Push) -> list[Out]:
        pull = self._pulls.get((peer, message.batch_index))
        if pull is None:
            raise Malformed(f"batch {message.batch_index} is pushed without a pull, or again")
        dense, epoch, frames = np.zeros(0, np.float32), 0.0, message.gradients
        if self._slice is not None:
            *frames, last = frames or [b""]
            dense = array(last, np.float32, self._slice.values().size + 1)
            dense, epoch = np.array(dense[:-1]), float(dense[-1])
            if not (epoch >= 0 and epoch.is_integer()):
                raise Malformed("an epoch that is not a number from 0 on")
        gradients = self._gradients(pull, frames)
        self._taken((peer, message.batch_index))
        if peer >= self._trainers and self._dense.settled(message.batch_index):
            return []  # this elastic worker counts as lost and its batches are refused
        about = message.batch_index, message.token
        average, rows = self._dense.add(*about, dense), []
        self._factor, self._epoch = message.factor, int(epoch)
        for aggregator, mine, picks, part in zip(self._rows, pull.rows, pull.picks, gradients, strict=True):
            found = np.ascontiguousarray(picks.by_row(part, mine.size))
            # With share 0 the example is another trainer's (see `RankSlice`): it fills a slot without gradients.
            taken = (mine, found) if message.share else (_NO_ROWS, found[:0])
            rows.append(aggregator.add(*about, *taken))
        self._finish(average, rows)
        return [(peer, messages.Applied(message.batch_index, step=self._dense.step))]

    def _finish(self, average: np.ndarray | None, rows: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> None:
        """Applies the averages of a step; None: no step is finished."""
        if average is None:
            return
        timestamp = self._clock.timestamp(self._dense.step - 1)
        if self._slice is not None:
            self._slice.apply(average, timestamp, self._epoch)
        for table, averages in zip(self.tables, rows, strict=True):
            table.apply(*present(averages), timestamp, self._factor)
