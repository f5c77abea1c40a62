"""Requests for sums: what a pull asks for of a table that pools, single rows and partial sums of bags.

Where a table pools (`pool_at: shard`), each node sends the sum of the rows that it has of a bag, in place of the rows
(ShadowSync: Zheng et al., section 3.1, "local embedding pooling on each PS"). The trainer adds up these partial sums
and sends back the gradient of each, which is the gradient of each of its rows.

Guarantees: every sum is in the order of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.nodes.transport.contract import Frames
from marius_oac.nodes.transport.messages import Malformed, array

_NONE, _NO_SUMS = np.zeros(0, np.int64), np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class Bags:
    """The sums that a pull asks a node for, in terms of the keys in the pull.

    Attributes:
        singles: number of keys, the first ones, whose rows are wanted as well.
        index: int32 [v], indices of keys; every key from `singles` on is among them.
        offsets: int32 [s + 1]: sum i is that of index[offsets[i]:offsets[i + 1]], at least one key.
    """

    singles: int
    index: np.ndarray
    offsets: np.ndarray

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the frames of a message."""
        return np.array([self.singles], np.int32), self.index, self.offsets

    @classmethod
    def parse(cls, frames: Frames, num_keys: int) -> Bags:
        """Parses what `arrays` returned, for a pull of so many keys.

        Raises:
            Malformed: it breaks what `Bags` guarantees.
        """
        if len(frames) != 3:
            raise Malformed(f"{len(frames)} frames of sums, not 3")
        singles = int(array(frames[0], np.int32, 1)[0])
        index, offsets = (array(frame, np.int32, -1) for frame in frames[1:])
        if not 0 <= singles <= num_keys:
            raise Malformed(f"single rows of {singles} of {num_keys} keys are pulled")
        if not offsets.size or offsets[0] != 0 or offsets[-1] != index.size or (offsets[1:] <= offsets[:-1]).any():
            raise Malformed("sums do not follow each other")
        if index.size and not 0 <= index.min() <= index.max() < num_keys:
            raise Malformed("a sum of keys that the pull does not have")
        used = np.zeros(num_keys, np.bool_)
        used[index] = True
        if not used[singles:].all():
            raise Malformed("a key without a single row or a sum")
        return cls(singles, index, offsets)


@dataclass(frozen=True, eq=False, slots=True)
class Picks:
    """Says from which of n rows the values of an answer are made: first single rows, then sums.

    Attributes:
        singles: int64 [k], the index of each single row.
        summed: int64 [v], indices of rows.
        offsets: int64 [s + 1]: sum i is that of the rows summed[offsets[i]:offsets[i + 1]].
    """

    singles: np.ndarray
    summed: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, index: np.ndarray, bags: Bags | None) -> Picks:
        """Returns the picks of a pull of keys whose rows are `index`, int64 [keys]; bags None: each row by itself."""
        if bags is None:
            return cls(index, _NONE, _NO_SUMS)
        return cls(index[: bags.singles].copy(), index[bags.index], bags.offsets.astype(np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Picks], counts: Sequence[int]) -> Picks:
        """Returns the picks of one answer to all of these pulls, each of so many rows, which follow each other. The
        single rows of all pulls come first, then the sums of all."""
        starts = np.cumsum([0, *counts[:-1]])
        singles, summed = [each.singles for each in parts], [each.summed for each in parts]
        values, ends = [each.size for each in summed], [each.offsets[1:] for each in parts]
        return cls(
            np.concatenate(singles) + np.repeat(starts, [each.size for each in singles]),
            np.concatenate(summed) + np.repeat(starts, values),
            np.concatenate((_NO_SUMS, *ends)) + np.repeat(np.cumsum([0, 0, *values[:-1]]), [1, *map(len, ends)]),
        )

    @property
    def size(self) -> int:
        """k + s, the values of an answer."""
        return self.singles.size + self.offsets.size - 1

    def values(self, rows: np.ndarray) -> np.ndarray:
        """Returns the answer, float32 [k + s, D], from the values of the rows, float32 [n, D]."""
        out = np.empty((self.size, rows.shape[1]), np.float32)
        kernels.spread_into(rows, self.singles, out)
        if self.summed.size:
            kernels.sum_into(rows, self.summed, self.offsets, out[self.singles.size :])
        return out

    def by_row(self, gradients: np.ndarray, count: int) -> np.ndarray:
        """Returns the gradient of each row, float32 [count, D], from those of the answer, float32 [k + s, D].

        A row that occurs several times has the sum of these gradients, added in their order. Every row must occur.
        """
        total, begun = np.empty((count, gradients.shape[1]), np.float32), np.zeros(count, np.bool_)
        kernels.add(self.singles, gradients[: self.singles.size], np.float32(1), begun, total)
        if self.summed.size:
            kernels.add_sums(self.summed, self.offsets, gradients[self.singles.size :], begun, total)
        return total

    def holding(self, rows: np.ndarray) -> np.ndarray:
        """Returns the positions in the answer, int64, ascending, that depend on any marked row, bool [n]."""
        found = np.empty(self.size, np.bool_)
        found[: self.singles.size] = rows[self.singles]
        if self.summed.size:
            kernels.any_of(rows, self.summed, self.offsets, found[self.singles.size :])
        return np.flatnonzero(found)

    def take(self, places: np.ndarray) -> Picks:
        """Returns the picks of these positions in the answer alone, int64, ascending."""
        first = int(np.searchsorted(places, self.singles.size))
        sums = places[first:] - self.singles.size
        starts, lengths = self.offsets[sums], self.offsets[sums + 1] - self.offsets[sums]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Picks(self.singles[places[:first]], self.summed[at], offsets)

    def compact(self, count: int) -> tuple[np.ndarray, Picks]:
        """Returns which of `count` rows occur, int64, ascending, and the picks in terms of these rows alone."""
        used = np.zeros(count, np.bool_)
        used[self.singles] = used[self.summed] = True
        number = np.cumsum(used) - 1
        return np.flatnonzero(used), Picks(number[self.singles], number[self.summed], self.offsets)
