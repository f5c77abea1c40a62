"""The rows of one node, as a state machine: messages in, messages out. No network, no threads, no clock.

In lockstep all trainers compute parts of the same batches, one after the other:

    pull     trainer r needs these rows for batch n. New keys are given rows in the order of (n, r). Values are sent at
             once, as they are after the batches applied so far; where a table pools, some of them as sums (`bags`)
    push     gives trainer r's gradients. When all trainers' have come and batch n - 1 is applied, they are added up in
             the order of r, and the row optimizer runs once per row, with timestamp n
    patch    when batch n is applied, the shard sends for every pull of batch n + 1 the rows with a larger timestamp
             than the trainer has seen, and the sums that hold any of them

So a trainer may pull many batches ahead and still has the rows of a batch-at-a-time run when it computes. This is
Optimistic Asynchrony Control (Waleffe and Mohoney, section 3) across nodes, with its validation by timestamp. Averaging
rows' gradients in every iteration is what Zhao et al. do (section 5, "System").

Without lockstep a push is applied as a whole when it comes, and nothing is sent again. Its timestamp is its batch's, so
Adam's step counts batches there as well, whatever the number of trainers.

Guarantees:
- In lockstep the rows are a function of what was pulled and pushed, whatever the order in which messages arrive.
- A message that does not fit earlier ones raises `Malformed` and changes nothing.
- At most `ahead` pulls of a trainer are kept: memory is bounded, whatever it sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.nodes.dense.sync_server import SyncServer
from marius_oac.nodes.gba.dispatch_server import DispatchServer
from marius_oac.nodes.parts.blocks import blocks_of, parts_of
from marius_oac.nodes.shards.bags import Bags, Picks
from marius_oac.nodes.shards.gathered import added_up, patches, tree_sums
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Frames
from marius_oac.nodes.transport.messages import NEVER_STOP, Malformed, Message, array
from marius_oac.storage.contract import MAX_TIMESTAMP
from marius_oac.types import present

Out = tuple[int, Message]
"""A trainer's rank, and a message to it."""
Asked = Sequence[tuple[Any, Bags | None]]
"""What a pull asks for, of each table: `ShardTable.pulled`."""


@dataclass(slots=True)
class _Pull:
    """What a trainer was sent for a batch.

    Attributes:
        rows: of each table, int64, ascending and unique.
        picks: of each table, from which of its rows each value is made (keys that are not admitted share a row).
        applied: the last batch whose changes the trainer has seen.
    """

    rows: list[np.ndarray]
    picks: list[Picks]
    applied: int


@dataclass(slots=True)
class _Push:
    """A push.

    Attributes:
        gradients: of each table, of the values that were pulled; none where there are virtual parts.
        blocks: of these, each block's sums: of each table indices of the rows that were pulled, and their gradients.
    """

    message: messages.Push
    gradients: list[np.ndarray]
    blocks: list[list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=list)


class Shard:
    """Answers pulls, pushes and look-ups of rows.

    Args:
        tables: rows of each table.
        trainers: number of trainers that pull and push.
        lockstep: whether they compute the same batches.
        sync: the part of EASGD's central parameters on this node, if any.
        ahead: a trainer has pulled at most so many batches that it has not pushed.
        parts: virtual parts of a batch, in lockstep; None: a trainer's push is one summand.
    """

    dispatch_server: DispatchServer | None = None
    """On the coordinator's node, where batches are dispatched."""

    def __init__(
        self,
        tables: Sequence[ShardTable],
        trainers: int,
        lockstep: bool = True,
        sync: SyncServer | None = None,
        ahead: int = 64,
        parts: int | None = None,
    ):
        self._blocks = None if parts is None else [
            blocks_of(parts_of(trainer, trainers, parts), parts) for trainer in range(trainers)
        ]  # fmt: skip
        self.sync, self._ahead = sync, ahead
        self.tables, self._trainers, self._lockstep = tables, trainers, lockstep
        self.begin(0)

    def begin(self, first: int) -> None:
        """Begins at batch `first`: all batches before it are in the rows, and no message is under way."""
        self.applied, self._stop_at, self._last_pulled = first - 1, NEVER_STOP, first - 1
        self._settled = first * self._trainers  # pulls, in the order of (batch, trainer)
        self._waiting: dict[int, Asked] = {}
        self._pulls: dict[tuple[int, int], _Pull] = {}
        self._pushes: dict[tuple[int, int], _Push] = {}
        self._begun: Counter[int] = Counter()
        """Of each trainer the pulls that wait or are served, and not pushed and applied."""
        self._pushed: Counter[int] = Counter()
        """Of each batch of lockstep the pushes."""

    def gone(self, peer: int) -> list[Out]:
        """Returns the messages to send when an elastic worker is gone."""
        return []

    def flush(self) -> None:
        """Applies what waits for further pushes, of which none is under way any more; here nothing does."""

    def metrics(self) -> dict[str, float]:
        """Returns counts since it was made; see `add_counts` for their names."""
        return {}

    def handle(self, peer: int, message: Message) -> list[Out]:
        """Returns the messages to send after a message of trainer `peer`.

        Raises:
            Malformed: the message does not fit.
            InputError: a table is full.
        """
        match message:
            case messages.Pull():
                return self._pull(peer, message)
            case messages.Push():
                return self._push(peer, message)
            case messages.LookUp():
                return self._look_up(peer, message)
            case messages.Sync() if self.sync is not None:
                return self._synchronise(peer, message, self.sync)
        raise Malformed(f"{message.kind.name} is not sent to this shard")

    def _pull(self, peer: int, message: messages.Pull) -> list[Out]:
        number = message.batch_index * self._trainers + peer
        known = (peer, message.batch_index) in self._pulls or number in self._waiting
        if known or (self._lockstep and number < self._settled):
            raise Malformed(f"batch {message.batch_index} is pulled again")
        if self._begun[peer] >= self._ahead or message.batch_index > MAX_TIMESTAMP:
            raise Malformed("a batch that is too far ahead is pulled")
        asked = self._asked(message.asked)
        self._begun[peer] += 1
        self._last_pulled = max(self._last_pulled, message.batch_index)
        if not self._lockstep:
            return [(peer, self._served(peer, message.batch_index, asked))]
        self._waiting[number] = asked
        out: list[Out] = []
        while self._settled in self._waiting:
            batch_index, trainer = divmod(self._settled, self._trainers)
            out.append((trainer, self._served(trainer, batch_index, self._waiting.pop(self._settled))))
            self._settled += 1
        return out

    def _asked(self, frames: Frames) -> Asked:
        """Parses the frames of a pull."""
        asked, at = [], 0
        for table in self.tables:
            asked.append(table.pulled(frames[at : at + table.num_frames]))
            at += table.num_frames
        if at != len(frames):
            raise Malformed(f"{len(frames)} frames, not {at}")
        return asked

    def _served(self, peer: int, batch_index: int, asked: Asked) -> messages.Rows:
        """Records a pull and returns its answer."""
        pull, values = _Pull([], [], self.applied), []
        for table, (each, bags) in zip(self.tables, asked, strict=True):
            index = table.rows_of(each)
            rows = relabel(index, table.store.capacity).copy()
            picks = Picks.of(index, bags)
            values.append(table.format.sent(picks.values(table.read(rows))))
            pull.rows.append(rows)
            pull.picks.append(picks)
        self._pulls[peer, batch_index] = pull
        final = not self._lockstep or self.applied == batch_index - 1
        return messages.Rows(batch_index, values, final, self._stop_at)

    def _push(self, peer: int, message: messages.Push) -> list[Out]:
        place = peer, message.batch_index
        if place not in self._pulls or place in self._pushes:
            raise Malformed(f"batch {message.batch_index} is pushed without a pull, or again")
        self._pushes[place] = self._parsed(peer, message, self._pulls[place])
        if not self._lockstep:
            if message.share:
                self._apply([place], message.batch_index, [1.0])
            else:  # the example is another trainer's, see `RankSlice`
                self._taken(place)
                del self._pushes[place]
            if message.stop_at < NEVER_STOP:  # no trainer is further than that ahead of the last batch pulled
                self._stop_at = min(self._stop_at, self._last_pulled + message.stop_at - message.batch_index)
            return [(peer, messages.Applied(message.batch_index, self._stop_at))]
        self._pushed[message.batch_index] += 1
        out = []
        while self._pushed[self.applied + 1] == self._trainers:
            del self._pushed[self.applied + 1]
            out += self._apply_all()
        return out

    def _taken(self, place: tuple[int, int]) -> _Pull:
        """Returns a pull, which is over."""
        self._begun[place[0]] -= 1
        return self._pulls.pop(place)

    def _parsed(self, peer: int, message: messages.Push, pull: _Pull) -> _Push:
        if self._blocks is None:
            return _Push(message, self._gradients(pull, message.gradients))
        blocks, frames = self._blocks[peer], message.gradients
        whole = [picks.singles for picks in pull.picks]
        if len(blocks) == 1 or not message.share:
            return _Push(message, [], [list(zip(whole, self._gradients(pull, frames), strict=True))])
        if len(frames) != 2 * len(self.tables):
            raise Malformed(f"{len(frames)} frames, not {2 * len(self.tables)}")
        found = []
        for each, bits, table, index in zip(frames[1::2], frames[::2], self.tables, whole, strict=True):
            packed = array(bits, np.uint8, len(blocks), -(-index.size // 8))
            has = np.unpackbits(packed, axis=1, count=index.size).view(np.bool_)
            ends = np.cumsum(has.sum(axis=1))
            values = array(each, np.float32, int(ends[-1]), table.dimension)
            found.append(list(zip([index[mine] for mine in has], np.split(values, ends[:-1]), strict=True)))
        return _Push(message, [], [list(block) for block in zip(*found, strict=True)])

    def _gradients(self, pull: _Pull, frames: Frames) -> list[np.ndarray]:
        """Parses the gradients of each table, float32 [n, D], of the values that were pulled."""
        if len(frames) != len(self.tables):
            raise Malformed(f"{len(frames)} frames, not {len(self.tables)}")
        return [
            array(frame, np.float32, picks.size, table.dimension)
            for frame, table, picks in zip(frames, self.tables, pull.picks, strict=True)
        ]

    def _apply_all(self) -> list[Out]:
        """Applies the next batch of all trainers; returns the messages to them."""
        batch_index = self.applied + 1
        places = [(trainer, batch_index) for trainer in range(self._trainers)]
        pushed = [self._pushes[place].message for place in places]
        self._apply(places, batch_index, [message.share for message in pushed])
        self.applied = batch_index
        self._stop_at = min(self._stop_at, *(message.stop_at for message in pushed))
        return self._news(batch_index)

    def _news(self, batch_index: int) -> list[Out]:
        """Returns what trainers are sent after a batch is applied: a patch to those that have pulled the next one."""
        places = [(trainer, batch_index + 1) for trainer in range(self._trainers)]
        found = {place[0]: self._pulls[place] for place in places if place in self._pulls}
        news: dict[int, list[np.ndarray]] = {trainer: [] for trainer in found}
        pulls = list(found.values())
        seen = [each.applied for each in pulls]
        for number, table in enumerate(self.tables if pulls else ()):
            about = [each.rows[number] for each in pulls], [each.picks[number] for each in pulls]
            for arrays, newer in zip(news.values(), patches(table, *about, seen), strict=True):
                arrays += newer
        applied = messages.Applied(batch_index, self._stop_at)
        return [
            (trainer, messages.Patch(batch_index + 1, news[trainer], self._stop_at) if trainer in news else applied)
            for trainer in range(self._trainers)
        ]

    def _apply(self, places: list[tuple[int, int]], timestamp: int, shares: list[float]) -> None:
        pulls, pushes = [self._taken(place) for place in places], [self._pushes.pop(place) for place in places]
        if self._blocks is not None:
            self._apply_blocks(pulls, pushes, timestamp)
            return
        for number, table in enumerate(self.tables):
            about = [each.rows[number] for each in pulls], [each.picks[number] for each in pulls]
            gradients = [each.gradients[number] for each in pushes]
            rows, total = added_up(*about, gradients, shares, table.store.capacity)
            table.apply(rows, total, timestamp, pushes[0].message.factor)

    def _apply_blocks(self, pulls: Sequence[_Pull], pushes: Sequence[_Push], timestamp: int) -> None:
        """As `_apply`, with sums in the tree of blocks. A push of share 0 has none of them."""
        chosen = [
            (block.start, pull.rows, sums, push.message.share)
            for blocks, pull, push in zip(present(self._blocks), pulls, pushes, strict=True)
            if push.message.share
            for block, sums in zip(blocks, push.blocks, strict=True)
        ]
        slots, shares = [slot for slot, *_ in chosen], [share for *_, share in chosen]
        for number, table in enumerate(self.tables):
            of_block = [rows[number][sums[number][0]] for _, rows, sums, _ in chosen]
            gradients = [sums[number][1] for _, _, sums, _ in chosen]
            found, total = tree_sums(slots, of_block, gradients, shares, table.store.capacity, table.dimension)
            table.apply(found, total, timestamp, pushes[0].message.factor)

    def _synchronise(self, peer: int, message: messages.Sync, sync: SyncServer) -> list[Out]:
        what, values = message.operation, None if message.values is None else torch.tensor(message.values)
        if (values is None) != (what == messages.Operation.READ):
            raise Malformed("a synchronisation that does not fit: values to read, or none to write")
        try:
            if what == messages.Operation.WRITE:
                sync.write(present(values))
            found = sync.exchange(present(values)) if what == messages.Operation.EXCHANGE else sync.read()
        except ValueError as error:
            raise Malformed(f"a synchronisation that does not fit: {error}") from None
        return [(peer, messages.Synced(message.number, found.numpy()))]

    def _look_up(self, peer: int, message: messages.LookUp) -> list[Out]:
        if message.table >= len(self.tables):
            raise Malformed(f"there is no table {message.table}")
        table = self.tables[message.table]
        values, known = table.look_up(table.asked(message.asked))
        return [(peer, messages.Found(message.number, values, known, message.table))]
