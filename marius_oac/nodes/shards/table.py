"""One table's rows on one node: looked up by number, as in a graph, or by key, as in a click log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from marius_oac.kernels.cpu import bags as row_kernels
from marius_oac.kernels.cpu import shards as kernels
from marius_oac.kernels.cpu.row_updates import Rule
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.shards.bags import Bags
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.contract import Frames
from marius_oac.nodes.transport.messages import Malformed, array
from marius_oac.storage.contract import ParameterStore
from marius_oac.storage.keys.table import KeyTable

Keys = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Vocabularies uint16 [n], keys int64 [n] and checks uint32 [n]."""
Pulled = tuple[np.ndarray, ...]
"""Keys; where they are admitted late also how often each was seen, uint32 [n]."""
_KEY_TYPES: Sequence[type[np.generic]] = (np.uint16, np.int64, np.uint32)


class ShardTable(ABC):
    """Reads and updates rows.

    Args:
        store: the rows, with the optimizer's state.
        optimizer: of the rows.
        penalty: the part of a row's value that is added to its gradient (`embedding_l2`).
        pools: whether some values of an answer are sums of rows.
    """

    num_frames: int
    """Frames of a pull of this table."""

    def __init__(self, store: ParameterStore, optimizer: RowOptimizer, penalty: float = 0.0, pools: bool = False):
        self.format = ValueFormat.of(store.layout, pools)
        self.store, self.dimension = store, store.layout.dimension
        self._optimizer, self._penalty = optimizer, np.float32(penalty)

    @abstractmethod
    def asked(self, frames: Frames) -> Any:
        """Parses the frames that say which rows a message asks for.

        Raises:
            Malformed: the frames don't fit this table.
        """

    def pulled(self, frames: Frames) -> tuple[Any, Bags | None]:
        """Parses the frames of a pull: the rows, and which sums of them are wanted; None: each row by itself.

        Raises:
            Malformed: the frames don't fit this table.
        """
        return self.asked(frames), None

    @abstractmethod
    def rows_of(self, asked: Any) -> np.ndarray:
        """Returns the rows, a new int64 [n], in the order asked; new keys are given rows."""

    @abstractmethod
    def look_up(self, asked: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns values, float32 [n, D], and whether each was ever trained, bool [n]; changes nothing."""

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Returns the values, float32 [n, D], of ascending rows, int64 [n]."""
        return self._read(rows, self.dimension)[0]

    def timestamps(self, rows: np.ndarray) -> np.ndarray:
        """Returns the timestamps, int64 [n], of ascending rows, int64 [n]."""
        return self._read(rows, 0)[1]

    def _read(self, rows: np.ndarray, elements: int) -> tuple[np.ndarray, np.ndarray]:
        values, timestamps = np.empty((rows.size, elements), np.float32), np.empty(rows.size, np.int64)
        self.store.read(rows, values, timestamps)
        return values, timestamps

    def apply(self, rows: np.ndarray, gradients: np.ndarray, timestamp: int, factor: float) -> None:
        """Makes one step of the optimizer on ascending rows, int64 [n], with gradients float32 [n, D]."""
        by = self._optimizer.rule(timestamp, factor)

        def update(values: np.ndarray, part: np.ndarray) -> None:
            # The same kernel as in a step, so that rows have the same bits as on one node.
            def kernel(rule: Rule) -> None:
                row_kernels.update(rule, self._penalty, 0, len(values), part.copy(), values, np.empty(len(values)))

            by.run(kernel, values, slice(None), self.dimension)

        self.store.apply(rows, gradients, update, timestamp)


class NumberedTable(ShardTable):
    """Rows are asked for by their numbers on this node."""

    num_frames = 1

    def asked(self, frames: Frames) -> np.ndarray:
        """See `ShardTable.asked`."""
        rows = array(frames[0], np.int64, -1) if len(frames) == 1 else None
        if rows is None or not kernels.all_below(rows, self.store.num_rows):
            raise Malformed(f"no rows of table {self.store.name!r}")
        return rows

    def rows_of(self, asked: np.ndarray) -> np.ndarray:
        """See `ShardTable.rows_of`."""
        return asked.copy()

    def look_up(self, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `ShardTable.look_up`."""
        rows, back = np.unique(asked, return_inverse=True)
        values, timestamps = self._read(rows, self.dimension)
        return values[back], (timestamps >= 0)[back]


class KeyedTable(ShardTable):
    """Rows are asked for by their keys, and made for new keys.

    Args:
        keys: the index and its store.
        optimizer, penalty: see `ShardTable`.
        pools: whether a pull asks for sums as well.
        file_of: returns the number of the file with a batch's examples, by which keys are dropped.
    """

    def __init__(
        self,
        keys: KeyTable,
        optimizer: RowOptimizer,
        penalty: float = 0.0,
        pools: bool = False,
        file_of: Callable[[int], int] = lambda timestamp: 0,
    ):
        super().__init__(keys.store, optimizer, penalty, pools)
        self.keys, self._pools, self._file_of = keys, pools, file_of
        self._key_frames = 4 if keys.counts_keys else 3
        self.num_frames = self._key_frames + 3 * pools

    def apply(self, rows: np.ndarray, gradients: np.ndarray, timestamp: int, factor: float) -> None:
        """See `ShardTable.apply`; notes the file that the batch is from, in the order of the batches."""
        super().apply(rows, gradients, timestamp, factor)
        self.keys.seen_in(rows, self._file_of(timestamp))

    def pulled(self, frames: Frames) -> tuple[Pulled, Bags | None]:
        """See `ShardTable.pulled`."""
        if len(frames) != self.num_frames:
            raise Malformed(f"{len(frames)} frames, not {self.num_frames}")
        keys: Pulled = self.asked(frames[:3])
        count = keys[1].size
        keys += tuple(array(each, np.uint32, count) for each in frames[3 : self._key_frames])
        return keys, Bags.parse(frames[self._key_frames :], count) if self._pools else None

    def asked(self, frames: Frames) -> Keys:
        """See `ShardTable.asked`."""
        if len(frames) != 3:
            raise Malformed(f"{len(frames)} frames, not 3")
        vocabularies, keys, checks = (array(*each, -1) for each in zip(frames, _KEY_TYPES, strict=True))
        if not vocabularies.size == keys.size == checks.size:
            raise Malformed("vocabularies, keys and checks differ in number")
        return vocabularies, keys, checks

    def rows_of(self, asked: Pulled) -> np.ndarray:
        """See `ShardTable.rows_of`."""
        (vocabularies, keys, checks), counts = asked[:3], asked[3:]
        rows = self.keys.find(vocabularies, keys, checks)
        self.keys.admit(vocabularies, keys, checks, rows, *counts)
        return rows

    def look_up(self, asked: Keys) -> tuple[np.ndarray, np.ndarray]:
        """See `ShardTable.look_up`."""
        values, local, _ = self.keys.look_up(*asked)
        return np.ascontiguousarray(values[local][:, : self.dimension]), self.keys.find(*asked) >= 0
