"""The rows that one node holds, as a state machine: messages in, messages out. No network, no threads, no clock.

In lockstep all trainers compute parts of the same batches, one after the other:

    pull     trainer r will need these rows for batch n: they get rows, in the order of (n, r), and are sent at once,
             as they are after the batches applied so far; where a table pools, some of them as sums (`bags`)
    push     trainer r's gradients by them; when all trainers' have come and batch n - 1 is applied, they are added up
             in the order of r, and the row optimizer runs once per row, with timestamp n
    patch    batch n is applied: of every pull for batch n + 1 the rows whose timestamp is larger than any that the
             trainer has seen are sent again, and the sums that hold any of them

So a trainer may pull many batches ahead, and has the rows of a batch-at-a-time run before it computes: Optimistic
Asynchrony Control (Waleffe and Mohoney, section 3) across nodes, validation by timestamp included. Averaging rows'
gradients in every iteration is what Zhao et al. do (section 5, "System").

Freely, a push is applied when it comes, whole, and nothing is sent again. Its timestamp is its batch's, so that
Adam's step counts batches there as well, whatever the number of trainers.

Guarantees:
- In lockstep the rows are a function of what was pulled and pushed, whatever the order in which messages arrive.
- A message that does not fit what was said before raises `Malformed` and changes nothing.
- Of a trainer's pulls no more than `ahead` are kept: memory is bounded, whatever it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.nodes.dense.sync_server import SyncServer
from marius_oac.nodes.gba.dispatch_server import DispatchServer
from marius_oac.nodes.shards.bags import Picks
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.nodes.transport.messages import NEVER_STOP, Kind, Malformed, Message, Sync, array, parse
from marius_oac.storage.contract import MAX_TIMESTAMP

Out = tuple[int, Message]
"""To which trainer, and what."""


@dataclass
class _Pull:
    """What a trainer was sent for a batch.

    Of each table: the rows, ascending and unique, and which of them each value is made of (keys that are not admitted
    share one). `applied`: the last batch whose changes the trainer has seen.
    """

    rows: list[np.ndarray]
    picks: list[Picks]
    applied: int


@dataclass
class _Push:
    message: Message
    gradients: list[np.ndarray]


class Shard:
    """Args:
    tables: rows of each table.
    trainers: how many pull and push.
    lockstep: whether they compute the same batches.
    sync: the part of EASGD's central parameters that lies here, if any.
    ahead: a trainer has pushed all but so many of the batches that it pulled.
    """

    desk: DispatchServer | None = None
    """The coordinator's, where batches are dispatched and it is this node."""

    def __init__(
        self,
        tables: Sequence[ShardTable],
        trainers: int,
        lockstep: bool = True,
        sync: SyncServer | None = None,
        ahead: int = 64,
    ):
        self.sync, self._ahead = sync, ahead
        self.tables, self._trainers, self._lockstep = tables, trainers, lockstep
        self.begin(0)

    def begin(self, first: int) -> None:
        """All batches before `first` are in the rows, no message is on its way."""
        self.applied, self._stop_at, self._last_pulled = first - 1, NEVER_STOP, first - 1
        self._settled = first * self._trainers  # pulls, in the order of (batch, trainer)
        self._waiting: dict[int, list] = {}
        self._pulls: dict[tuple[int, int], _Pull] = {}
        self._pushes: dict[tuple[int, int], _Push] = {}

    def gone(self, peer: int) -> list[Out]:
        """What follows from an elastic worker's end; nothing more comes from it."""
        return []

    def flush(self) -> None:
        """No push is on its way any more; in lockstep and freely all are applied then."""

    def metrics(self) -> dict[str, float]:
        """Counts since it was made; those whose names end in `max` are the largest."""
        return {}

    def handle(self, peer: int, frames: Sequence) -> list[Out]:
        """What follows from a message of trainer `peer`. Raises Malformed, and InputError where a table is full."""
        message, rest = parse(frames)
        if message.kind == Kind.PULL:
            return self._pull(peer, message, rest)
        if message.kind == Kind.PUSH:
            return self._push(peer, message, rest)
        if message.kind == Kind.LOOK_UP:
            return self._look_up(peer, message, rest)
        if message.kind == Kind.SYNC and self.sync is not None:
            return self._synchronise(peer, message, rest)
        raise Malformed(f"a trainer sends no {message.kind.name} here")

    def _pull(self, peer: int, message: Message, frames: Sequence) -> list[Out]:
        number = message.batch_index * self._trainers + peer
        known = (peer, message.batch_index) in self._pulls or number in self._waiting
        if known or (self._lockstep and number < self._settled):
            raise Malformed(f"batch {message.batch_index} is pulled again")
        begun = [each for each, _ in self._pulls] + [each % self._trainers for each in self._waiting]
        if begun.count(peer) >= self._ahead or message.batch_index > MAX_TIMESTAMP:
            raise Malformed("a batch that is too far ahead is pulled")
        asked = self._asked(frames)
        self._last_pulled = max(self._last_pulled, message.batch_index)
        if not self._lockstep:
            return [self._served(peer, message.batch_index, asked)]
        self._waiting[number] = asked
        out = []
        while self._settled in self._waiting:
            batch_index, trainer = divmod(self._settled, self._trainers)
            out.append(self._served(trainer, batch_index, self._waiting.pop(self._settled)))
            self._settled += 1
        return out

    def _asked(self, frames: Sequence) -> list:
        """What a pull asks for of each table."""
        asked, at = [], 0
        for table in self.tables:
            asked.append(table.pulled(frames[at : at + table.num_frames]))
            at += table.num_frames
        if at != len(frames):
            raise Malformed(f"{len(frames)} frames, not {at}")
        return asked

    def _served(self, peer: int, batch_index: int, asked: list) -> Out:
        pull, values = _Pull([], [], self.applied), []
        for table, (each, bags) in zip(self.tables, asked, strict=True):
            index = table.rows_of(each)
            rows = relabel(index, table.store.capacity).copy()
            picks = Picks.of(index, bags)
            values.append(picks.values(table.read(rows)))
            pull.rows.append(rows)
            pull.picks.append(picks)
        self._pulls[peer, batch_index] = pull
        final = not self._lockstep or self.applied == batch_index - 1
        return peer, Message(Kind.ROWS, batch_index, values, final=final, stop_at=self._stop_at)

    def _push(self, peer: int, message: Message, frames: Sequence) -> list[Out]:
        place = peer, message.batch_index
        if place not in self._pulls or place in self._pushes:
            raise Malformed(f"batch {message.batch_index} is pushed without a pull, or again")
        self._pushes[place] = _Push(message, self._gradients(self._pulls[place], frames))
        if not self._lockstep:
            if message.share:
                self._apply([place], message.batch_index, [1.0])
            else:  # an example of another trainer's, see `RankSlice`
                del self._pulls[place], self._pushes[place]
            if message.stop_at < NEVER_STOP:  # nobody has gone further than that much ahead of the last one pulled
                self._stop_at = min(self._stop_at, self._last_pulled + message.stop_at - message.batch_index)
            return [(peer, Message(Kind.APPLIED, message.batch_index, stop_at=self._stop_at))]
        out = []
        while all((trainer, self.applied + 1) in self._pushes for trainer in range(self._trainers)):
            out += self._apply_all()
        return out

    def _gradients(self, pull: _Pull, frames: Sequence) -> list[np.ndarray]:
        """A push's gradients of each table, float32 [n, D]: of the values that were pulled."""
        if len(frames) != len(self.tables):
            raise Malformed(f"{len(frames)} frames, not {len(self.tables)}")
        return [
            array(frame, np.float32, picks.size, table.dimension)
            for frame, table, picks in zip(frames, self.tables, pull.picks, strict=True)
        ]

    def _apply_all(self) -> list[Out]:
        """The next batch of all trainers, and who must hear of it."""
        batch_index = self.applied + 1
        places = [(trainer, batch_index) for trainer in range(self._trainers)]
        messages = [self._pushes[place].message for place in places]
        self._apply(places, batch_index, [message.share for message in messages])
        self.applied = batch_index
        self._stop_at = min(self._stop_at, *(message.stop_at for message in messages))
        return [(trainer, self._news(trainer, batch_index)) for trainer in range(self._trainers)]

    def _news(self, trainer: int, batch_index: int) -> Message:
        pull = self._pulls.get((trainer, batch_index + 1))
        if pull is None:
            return Message(Kind.APPLIED, batch_index, stop_at=self._stop_at)
        arrays = []
        for table, rows, picks in zip(self.tables, pull.rows, pull.picks, strict=True):
            places = picks.holding(table.timestamps(rows) > pull.applied)
            needed, newer = picks.take(places).compact(rows.size)
            arrays += [places, newer.values(table.read(rows[needed]))]
        return Message(Kind.PATCH, batch_index + 1, arrays, stop_at=self._stop_at)

    def _apply(self, places: list[tuple[int, int]], timestamp: int, shares: list[float]) -> None:
        pulls, pushes = [self._pulls.pop(place) for place in places], [self._pushes.pop(place) for place in places]
        for number, table in enumerate(self.tables):
            rows, gradients = kernels.added_up(
                [pull.rows[number] for pull in pulls],
                [
                    pull.picks[number].by_row(push.gradients[number], pull.rows[number].size)
                    for pull, push in zip(pulls, pushes, strict=True)
                ],
                shares,
                table.store.capacity,
            )
            table.apply(rows, gradients, timestamp, pushes[0].message.factor)

    def _synchronise(self, peer: int, message: Message, frames: Sequence) -> list[Out]:
        try:
            what = Sync(message.table)
            values = torch.tensor(array(frames[0], np.float32, -1)) if what != Sync.READ else None
            if what == Sync.WRITE:
                self.sync.write(values)
            found = self.sync.exchange(values) if what == Sync.EXCHANGE else self.sync.read()
        except (ValueError, IndexError) as error:
            raise Malformed(f"a synchronisation that does not fit: {error}") from None
        return [(peer, Message(Kind.SYNCED, message.batch_index, [found.numpy()]))]

    def _look_up(self, peer: int, message: Message, frames: Sequence) -> list[Out]:
        if message.table >= len(self.tables):
            raise Malformed(f"there is no table {message.table}")
        table = self.tables[message.table]
        values, known = table.look_up(table.asked(frames))
        return [(peer, Message(Kind.FOUND, message.batch_index, [values, known], table=message.table))]
