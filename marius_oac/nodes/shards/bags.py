"""What a pull asks for of one table: single rows, and sums of the rows that a node has of a bag.

Where a table pools (`pool_at: shard`), a trainer is not sent a bag's rows but their sum, from each node that has some
of them (ShadowSync: Zheng et al., section 3.1, "local embedding pooling on each PS"). It adds the sums up, and sends
back the gradient by each sum, which is that by each of its rows.

Guarantees: every sum has one order, that of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.nodes.transport.messages import Malformed, array

_NONE, _NO_SUMS = np.zeros(0, np.int64), np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class Bags:
    """The sums that a node is asked for, in terms of the keys that it is told.

    Attributes:
        singles: so many of the keys, the first ones, are asked for by themselves too.
        index: int32 [v], numbers of keys; every key from `singles` on is among them.
        offsets: int32 [s + 1]: sum i is that of index[offsets[i]:offsets[i + 1]], at least one key.
    """

    singles: int
    index: np.ndarray
    offsets: np.ndarray

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As they travel."""
        return np.array([self.singles], np.int32), self.index, self.offsets

    @classmethod
    def parse(cls, frames: Sequence, num_keys: int) -> Bags:
        """What `arrays` gave, of a pull of so many keys.

        Raises:
            Malformed: it is not what `Bags` says.
        """
        if len(frames) != 3:
            raise Malformed(f"{len(frames)} frames, not 3, of sums")
        singles = int(array(frames[0], np.int32, 1)[0])
        index, offsets = (array(frame, np.int32, -1) for frame in frames[1:])
        if not 0 <= singles <= num_keys:
            raise Malformed(f"{singles} of {num_keys} keys are asked for by themselves")
        if not offsets.size or offsets[0] != 0 or offsets[-1] != index.size or (offsets[1:] <= offsets[:-1]).any():
            raise Malformed("sums do not follow each other")
        if index.size and not 0 <= index.min() <= index.max() < num_keys:
            raise Malformed("a sum of keys that are not there")
        used = np.zeros(num_keys, np.bool_)
        used[index] = True
        if not used[singles:].all():
            raise Malformed("a key that nothing is asked of")
        return cls(singles, index, offsets)


@dataclass(frozen=True, eq=False)
class Picks:
    """Which of some rows, n in all, the values of an answer are made of: of each single row, then of each sum.

    Attributes:
        singles: int64 [k], the number of each single value's row.
        summed: int64 [v]; offsets: int64 [s + 1]: sum i is that of the rows summed[offsets[i]:offsets[i + 1]].
    """

    singles: np.ndarray
    summed: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, index: np.ndarray, bags: Bags | None) -> Picks:
        """Of keys whose rows are `index`, int64, one for each key."""
        if bags is None:
            return cls(index, _NONE, _NO_SUMS)
        return cls(index[: bags.singles].copy(), index[bags.index], bags.offsets.astype(np.int64))

    @property
    def size(self) -> int:
        """k + s, values of an answer."""
        return self.singles.size + self.offsets.size - 1

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The answer, float32 [k + s, D], of the values of the rows, float32 [n, D]."""
        out = np.empty((self.size, rows.shape[1]), np.float32)
        kernels.spread_into(rows, self.singles, out)
        kernels.sum_into(rows, self.summed, self.offsets, out[self.singles.size :])
        return out

    def by_row(self, gradients: np.ndarray, count: int) -> np.ndarray:
        """The gradient by each row, float32 [count, D], of those by the answer, float32 [k + s, D]; every row is in it.

        A row that stands in several sums, or several times in one, has the gradient of each time, in their order.
        """
        total, begun = np.empty((count, gradients.shape[1]), np.float32), np.zeros(count, np.bool_)
        kernels.add(self.singles, gradients[: self.singles.size], np.float32(1), begun, total)
        kernels.add_sums(self.summed, self.offsets, gradients[self.singles.size :], begun, total)
        return total

    def holding(self, rows: np.ndarray) -> np.ndarray:
        """Places in the answer, int64, ascending, of what is made of any of the rows marked, bool [n]."""
        found = np.empty(self.size, np.bool_)
        found[: self.singles.size] = rows[self.singles]
        kernels.any_of(rows, self.summed, self.offsets, found[self.singles.size :])
        return np.flatnonzero(found)

    def take(self, places: np.ndarray) -> Picks:
        """The same of these places in the answer alone, int64, ascending."""
        first = int(np.searchsorted(places, self.singles.size))
        sums = places[first:] - self.singles.size
        starts, lengths = self.offsets[sums], self.offsets[sums + 1] - self.offsets[sums]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Picks(self.singles[places[:first]], self.summed[at], offsets)

    def compact(self, count: int) -> tuple[np.ndarray, Picks]:
        """Which of so many rows are in it, int64, ascending, and the same in terms of these alone."""
        used = np.zeros(count, np.bool_)
        used[self.singles] = used[self.summed] = True
        number = np.cumsum(used) - 1
        return np.flatnonzero(used), Picks(number[self.singles], number[self.summed], self.offsets)
