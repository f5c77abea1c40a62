"""The rows of one process, and their updates by the rule of the user's optimizer.

Of each batch every process sends, of each table, whether its loop has stepped, with which learning rate and weight
decay, and its rows' gradients. They are averaged in the order of ranks, as DDP averages those of dense parameters, and
a row is updated once. Where processes differ in what must be the same, nothing is updated, and the error names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.errors import DivergedError, InputError, shown
from marius_oac.models.compute.soundness import is_sound
from marius_oac.nodes.shards.gathered import added_up
from marius_oac.nodes.shards.shard import Out, Shard, _Pull
from marius_oac.nodes.shards.table import KeyedTable, Pulled
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Frames
from marius_oac.nodes.transport.messages import Malformed, Message, array
from marius_oac.torch.optimizers import RowsOptimizer
from marius_oac.torch.tables import Table

FRAMES = 2
"""Of each table in a push: `Stepped.about`, and the gradients."""


@dataclass(frozen=True, eq=False)
class Stepped:
    """What a loop has done with the rows of one table in a batch.

    Attributes:
        rate: the learning rate; 0 where it has not stepped.
        number: of the step, from 1; 0: it has not stepped, or there was no gradient.
        gradients: float32 [n, dimension + 1]; the last column is 1 where the model has looked up the row, else 0. Empty
            where it has not stepped.
        decay: the weight decay.
    """

    rate: float
    number: int
    gradients: np.ndarray
    decay: float = 0.0

    @property
    def about(self) -> np.ndarray:
        """Rate, number and decay, float64 [3]."""
        return np.array([self.rate, self.number, self.decay], np.float64)

    @classmethod
    def parse(cls, frames: Frames, count: int, dimension: int) -> Stepped:
        """What another process has sent of `count` rows. Raises Malformed if it is none."""
        rate, number, decay = array(frames[0], np.float64, 3).tolist()
        finite = 0 <= rate < float("inf") and 0 <= decay < float("inf")
        if not (finite and 0 <= number < 2**53 and number == int(number)):
            raise Malformed(f"a step {number} with a learning rate of {rate} and a weight decay of {decay}")
        return cls(rate, int(number), array(frames[1], np.float32, count if number else 0, dimension + 1), decay)


NO_STEP = Stepped(0.0, 0, np.empty((0, 1), np.float32))
"""Of a batch that no optimizer has changed."""


class LoopTable(KeyedTable):
    """A table's rows in this process."""

    def __init__(self, table: Table, optimizer: RowsOptimizer):
        super().__init__(table.key_table, optimizer.kernel)
        self.table, self._by = table, optimizer

    def rows_of(self, asked: Pulled) -> np.ndarray:
        """See `ShardTable.rows_of`. Raises InputError if they are of another kind than the table's."""
        vocabularies = asked[0]
        for vocabulary in np.unique(vocabularies):
            self.table.settle(bool(vocabulary), f"table {self.table.name!r}")
        with self.table.at_rest():
            return super().rows_of(asked)

    def step(self, rows: np.ndarray, summed: np.ndarray, timestamp: int, about: Stepped) -> None:
        """Updates ascending rows, int64 [n], by the sums of `Stepped.gradients`, float32 [n, dimension + 1].

        Raises:
            DivergedError: rows become NaN, infinite or too large.
        """
        if self._by.only_used or about.decay:
            used = np.flatnonzero(summed[:, -1] > 0)
            rows, summed = rows[used], summed[used]
        by = self._by.updating(about.rate, about.number, about.decay)

        def update(values: np.ndarray, gradients: np.ndarray) -> None:
            by(values, gradients)
            if not is_sound(np.ascontiguousarray(values), self.dimension):
                raise DivergedError(timestamp, f"rows of table {shown(self.table.name)} are NaN, infinite or too large")

        self.store.apply(rows, np.ascontiguousarray(summed[:, :-1]), update, timestamp)


class LoopShard(Shard):
    """The rows of one process, in lockstep with the loops of all."""

    tables: Sequence[LoopTable]

    def begin(self, first: int) -> None:
        """See `Shard.begin`. What was pulled for a loop that ended before is dropped."""
        super().begin(first)
        self._first = first
        self._steps: dict[tuple[int, int], list[Stepped]] = {}

    def handle(self, peer: int, message: Message) -> list[Out]:
        """See `Shard.handle`."""
        if isinstance(message, messages.Pull) and message.batch_index < self._first:
            return []  # sent ahead by a loop that has ended since
        return super().handle(peer, message)

    def _gradients(self, pull: _Pull, frames: Frames) -> list[np.ndarray]:
        """Checks the frames, and keeps them as they are: `_apply` makes more of them."""
        if len(frames) != FRAMES * len(self.tables):
            raise Malformed(f"{len(frames)} frames, not {FRAMES * len(self.tables)}")
        for number, (table, picks) in enumerate(zip(self.tables, pull.picks, strict=True)):
            Stepped.parse(frames[FRAMES * number :], picks.size, table.dimension)
        return []

    def _apply(self, places: list[tuple[int, int]], timestamp: int, shares: list[float]) -> None:
        pulls = [self._pulls[place] for place in places]
        pushes = [self._pushes[place].message.gradients for place in places]
        every = [
            [Stepped.parse(frames[FRAMES * number :], pull.picks[number].size, table.dimension)
             for frames, pull in zip(pushes, pulls, strict=True)]
            for number, table in enumerate(self.tables)
        ]  # fmt: skip
        for table, steps in zip(self.tables, every, strict=True):
            _check_alike(table.table.name, timestamp, steps)
        for place in places:
            self._taken(place)
            del self._pushes[place]
        for number, (table, steps) in enumerate(zip(self.tables, every, strict=True)):
            if not steps[0].number:
                continue
            about = [each.rows[number] for each in pulls], [each.picks[number] for each in pulls]
            rows, summed = added_up(*about, [step.gradients for step in steps], shares, table.store.capacity)
            table.step(rows, summed, timestamp, steps[0])


def _check_alike(name: str, batch: int, steps: Sequence[Stepped]) -> None:
    """Raises InputError if not all have stepped, or with other learning rates."""
    first = steps[0]
    for rank, other in enumerate(steps):
        where = f"batch {batch}, table {name!r}"
        if bool(other.number) != bool(first.number):
            did, not_ = (0, rank) if first.number else (rank, 0)
            raise InputError(f"rank {did} has updated rows and rank {not_} has not: it called no step, or had no "
                             "gradient", where)  # fmt: skip
        if other.rate != first.rate:
            raise InputError(f"the learning rate is {first.rate:g} on rank 0 and {other.rate:g} on rank {rank}", where)
        if other.decay != first.decay:
            raise InputError(f"the weight decay is {first.decay:g} on rank 0 and {other.decay:g} on rank {rank}", where)
        if other.number != first.number:
            raise InputError(f"it is step {first.number} on rank 0 and {other.number} on rank {rank}", where)
