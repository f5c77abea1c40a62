"""Moves the keys of a table, and their rows, from the parts of a checkpoint to the processes that carry them now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from marius_oac.errors import CheckpointError
from marius_oac.nodes.spread.handover import NOBODY, Handover, whole_rows
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.storage.keys.table import NO_KEY, is_shared
from marius_oac.storage.placement import Placement, shard_of_keys
from marius_oac.storage.snapshots import SavedTable

_COLUMNS = 3  # int64: the key; its check and vocabulary; what else is kept of it
_BESIDES = {"waiting": "seen", "index": "last_file"}
_TYPES = {"seen": np.int64, "last_file": np.int32}


@dataclass(frozen=True)
class _Moved:
    """The keys of one part.

    Attributes:
        total: how many it has.
        owners: of each of those that this process has read, int64 [n].
        received: what each carrier has sent to this process, int64 [m, _COLUMNS].
    """

    total: int
    owners: np.ndarray
    received: list[np.ndarray]


class KeyMove:
    """One table of keys. All processes call its methods together, `keys` first.

    Args:
        table: its name.
        parts: of the checkpoint.
        placement: of the virtual shards now.
    """

    def __init__(self, table: str, parts: Sequence[Checkpoint], placement: Placement, handover: Handover):
        self._table, self._parts, self._placement, self._handover = table, parts, placement, handover
        self._moved: list[_Moved] = []

    def keys(self) -> dict[str, np.ndarray]:
        """Returns `KeyTable.arrays` of this process: part by part, in the order of the rows, without free ones."""
        kept: dict[str, np.ndarray] = {}
        for index, name in _BESIDES.items():
            if not self._has(f"{index}.keys"):
                continue
            self._moved = [self._move(part, index) for part in self._parts]
            every = np.concatenate([rows for moved in self._moved for rows in moved.received])
            kept[f"{index}.keys"] = every[:, 0].copy()
            kept[f"{index}.checks"] = (every[:, 1] & 0xFFFFFFFF).astype(np.uint32)
            kept[f"{index}.vocabularies"] = (every[:, 1] >> 32).astype(np.uint16)
            kept[f"{index}.free"] = np.zeros(0, np.int64)
            if self._has(name):
                kept[name] = every[:, 2].astype(_TYPES[name])
        if self._has("dropped"):
            read = partial(_dropped, self._table, self._parts)
            kept["dropped"] = np.array([self._handover.agreed(read) * self._handover.leads])  # one process counts them
        return kept

    def rows(self, width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the rows of the keys, as `whole_rows` makes them of `width` bytes, some at a time, with the number of
        the first."""
        place = 0
        for part, moved in zip(self._parts, self._moved, strict=True):
            saved, done = self._handover.agreed(partial(part.table, self._table)), 0
            places = place + np.cumsum([0, *map(len, moved.received)])
            place = int(places[-1])
            for block in self._handover.blocks(moved.total):
                read = partial(_rows, saved, block, moved.owners[done : done + len(block)])
                done += len(block)
                for carrier, found in enumerate(self._handover.send(width, read)):
                    if len(found):
                        yield int(places[carrier]), found
                    places[carrier] += len(found)

    def _has(self, name: str) -> bool:
        return self._parts[0].has(f"{self._table}.{name}")

    def _move(self, part: Checkpoint, index: str) -> _Moved:
        total, free = self._handover.agreed(partial(_size, part, self._table, index))
        owners: list[np.ndarray] = []
        received: list[list[np.ndarray]] = [[] for _ in self._handover.carriers]
        for block in self._handover.blocks(total):

            def read(block: range = block) -> tuple[np.ndarray, np.ndarray]:
                rows, shards = self._read(part, index, block)
                found = self._placement.nodes[shards].astype(np.int64)
                found[free[np.searchsorted(free, block.start) : np.searchsorted(free, block.stop)] - block.start] = (
                    NOBODY
                )
                owners.append(found)
                return rows, found

            for rows, sent in zip(received, self._handover.send(8 * _COLUMNS, read), strict=True):
                rows.append(sent.reshape(-1).view(np.int64).reshape(-1, _COLUMNS))
        none = np.zeros((0, _COLUMNS), np.int64)
        return _Moved(
            total, np.concatenate([*owners, none[:, 0]]), [np.concatenate([*each, none]) for each in received]
        )

    def _read(self, part: Checkpoint, index: str, block: range) -> tuple[np.ndarray, np.ndarray]:
        """Some keys with what belongs to them, int64 [n, _COLUMNS], and their virtual shards."""
        names = [f"{index}.keys", f"{index}.vocabularies", f"{index}.checks"]
        if self._has(_BESIDES[index]):
            names.append(_BESIDES[index])
        found = [np.array(part.part(self._table, name)[block.start : block.stop]) for name in names]
        if any(len(each) != len(block) for each in found):
            raise CheckpointError(f"is damaged: the keys of {self._table!r} do not match each other", part.path)
        keys, vocabularies, checks, *besides = found
        rows = np.zeros((len(block), _COLUMNS), np.int64)
        rows[:, 0], rows[:, 1] = keys, vocabularies.astype(np.int64) << 32 | checks
        if besides:
            rows[:, 2] = besides[0]
        return rows, shard_of_rows(vocabularies, keys, self._placement.num_shards)


def shard_of_rows(vocabularies: np.ndarray, keys: np.ndarray, num_shards: int) -> np.ndarray:
    """The virtual shard of the row of each key, int64 [n], of the shared rows, too."""
    shared = np.maximum(keys - NO_KEY - 1, 0)
    return np.where(is_shared(keys), shared, shard_of_keys(vocabularies, keys, num_shards))


def _size(part: Checkpoint, table: str, index: str) -> tuple[int, np.ndarray]:
    """How many keys a part has, and its free rows, int64 [n], ascending."""
    free = np.array(part.part(table, f"{index}.free")[:])
    total = len(part.part(table, f"{index}.keys"))
    if free.size and not (free[0] >= 0 and free[-1] < total and (np.diff(free) > 0).all()):
        raise CheckpointError(f"is damaged: the free rows of {table!r} are none", part.path)
    return total, free


def _dropped(table: str, parts: Sequence[Checkpoint]) -> int:
    return sum(int(part.part(table, "dropped")[:][0]) for part in parts)


def _rows(saved: SavedTable, block: range, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return whole_rows(saved, block), owners
