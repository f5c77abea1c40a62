"""The rows of one module: a store, its keys, and what of them is with the user's loop."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import ValidationError

from marius_oac.config.sections import OptimizerConfig, StorageConfig
from marius_oac.errors import InputError, shown
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.runs.stores import Tables
from marius_oac.runtime.files.atomic import disk_errors
from marius_oac.runtime.machine import cgroups
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.storage.keys.index import MAX_CAPACITY
from marius_oac.storage.keys.table import KeyTable
from marius_oac.storage.snapshots import SavedTable
from marius_oac.torch.key_forms import KeyArray
from marius_oac.torch.sharing import ALONE, Share

IN_MEMORY = StorageConfig()
_SHARE = 0.5  # of the free memory, and of the free disk, that a table may grow to
_KEY_BYTES = 25  # of the index, for each row
_PAGED_BYTES = 16  # of memory, for each row on disk: of the index, whose keys are in a file, and of its page


def storage(memory: Any, path: Any, where: str) -> StorageConfig:
    """Where rows lie: at most `memory` bytes of them, or a text such as "8GiB", in memory, the others in files under
    `path`, a folder or several. Both None: all are in memory.

    Raises:
        InputError: one of the two is missing, or is no such thing.
    """
    if memory is None and path is None:
        return IN_MEMORY
    if memory is None or path is None:
        given, other = ("path", "memory") if memory is None else ("memory", "path")
        needs = "memory, such as '8GiB', for the rows that are not in files" if memory is None else "path, a folder for"
        raise InputError(f"{given} needs {needs}" + " the other rows" * (path is None), f"{where}: {other}")
    paths = [path] if isinstance(path, str | os.PathLike) else path
    if not (isinstance(paths, list | tuple) and paths and all(isinstance(each, str | os.PathLike) for each in paths)):
        raise InputError(f"a folder, or a list of them, not {shown(path)}", f"{where}: path")
    folders = [os.path.abspath(each) for each in paths]
    for folder in folders:
        if not os.path.isdir(folder):
            raise InputError("there is no such folder", folder)
    try:
        return StorageConfig(memory=memory, path=folders)
    except ValidationError:
        raise InputError(
            f"a number of bytes, or a text such as '8GiB', not {shown(memory)}", f"{where}: memory"
        ) from None


class Table:
    """Rows by key, of a table that is made empty. Files of rows, which have no names, go with it.

    Args:
        name: of the module.
        dimension: floats of a row's value.
        std, seed: of new rows.
        config: of the optimizer.
        capacity: most rows; None: as many as half of the free memory, or of the free disk, takes.
        place: where rows lie, as `storage` returns it.
        share: the part of all keys that have rows here.

    Raises:
        InputError: files can't be made.

    Attributes:
        initial: its new rows.
        kind: of the optimizer whose state the rows have.
        next_timestamp: that of the first batch to come: all before it are in the store.
        broken: why no engine may use the rows any more; None: any may.
        elsewhere: looks up rows in several processes, as `look_up`; None: all are here.
        texts: whether its keys are texts; None: it has had none.
    """

    def __init__(
        self, name: str, dimension: int, std: float, seed: int, config: OptimizerConfig, capacity: int | None,
        place: StorageConfig = IN_MEMORY, share: Share = ALONE,
    ):  # fmt: skip
        self.share = share
        self.name, self.dimension, self.kind = name, dimension, config.kind
        optimizer = RowOptimizer(config)
        layout = RowLayout(dimension, optimizer.state_width(dimension))
        self._folders = [Path(each) for each in place.path]
        capacity = capacity or _room(layout.row_bytes, self._folders)
        initial = self.initial = RowInitial("normal", std, seed, name, optimizer.initial_state)
        name = quote(name, safe="").replace(".", "%2E")  # a part of files' names, up to the first dot
        self._stack = ExitStack()  # it need not be closed: memory and files go with what uses them
        with disk_errors(self._folders[0] if self._folders else Path(name)):
            rows = {name: min(capacity, MAX_CAPACITY)}
            place_of = Tables(place, None, {name: layout}, rows, self._stack, lasting=False)
            self.store = place_of.make(name, 0, initial)
            self._keys = KeyTable(self.store, folder=self._folders[0] if self._folders else None)
        self._admitting = threading.Lock()  # a look-up must not find a key whose row is not in the store yet
        self.next_timestamp, self.broken, self.texts = 0, None, None  # type: int, str | None, bool | None
        self.elsewhere: Callable[[KeyArray], tuple[np.ndarray, np.ndarray]] | None = None

    @property
    def capacity(self) -> int:
        """The largest number of rows."""
        return self.store.capacity

    @property
    def end(self) -> int:
        """The number after the last row's."""
        return self.store.num_rows

    def __len__(self) -> int:
        return len(self._keys)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within it no key gets a row. No batch may be on its way to the store."""
        with self._admitting:
            yield

    def keys(self) -> dict[str, np.ndarray]:
        """The keys, as `KeyTable.arrays`, to be saved with the store."""
        return self._keys.arrays()

    def restore(self, saved: SavedTable, keys: Mapping[str, np.ndarray]) -> None:
        """Sets rows and keys to what was saved. Raises CheckpointError if it belongs to another table."""
        with self._disk_errors():
            self.store.backing.forget()
            self._keys.load(keys)
            self.store.restore(saved)
        first = np.arange(min(1, len(self._keys)))
        self.texts = bool(self._keys.index.vocabularies_of(first)[0]) if first.size else None

    @property
    def key_table(self) -> KeyTable:
        """Its keys, with their store."""
        return self._keys

    def begin_with(self, values: np.ndarray) -> None:
        """Gives keys 0 to n - 1 the first rows of the empty table, with these values, float32 [n, dimension]; but only
        those that have rows here.

        Raises:
            InputError: the table has no room for them.
        """
        numbers = np.arange(len(values))
        if self.share != ALONE:
            here = self.share.holds(np.zeros(numbers.size, np.uint16), numbers)
            numbers, values = numbers[here], values[here]
        count, self.texts = len(values), False
        keys = np.zeros(count, np.uint16), numbers, np.zeros(count, np.uint32)
        with self._disk_errors():
            self._keys.admit(*keys, np.full(count, -1), distinct=True)
            for block in self.store.blocks():
                block.rows[:, : self.dimension] = values[block.first_row : block.first_row + len(block.rows)]
                self.store.load(block.first_row, block.timestamps, block.rows)

    def check_kind(self, texts: bool, where: str) -> None:
        """Raises InputError if the table's keys are integers and these are texts, or the other way around."""
        if self.texts not in (None, texts):
            own, these = ("texts", "integers") if self.texts else ("integers", "texts")
            raise InputError(f"keys are {these}, and those of the table so far are {own}: 7 and '7' are two keys, so "
                             "give all in one form", where)  # fmt: skip

    def settle(self, texts: bool, where: str) -> None:
        """Says that keys which get rows are texts, or integers: all must be. Raises InputError as `check_kind`."""
        self.check_kind(texts, where)
        self.texts = texts

    def find(self, distinct: DistinctKeys) -> np.ndarray:
        """The row of each key, int64 [m]; -1: it has none yet."""
        return self._keys.find(*distinct.asked)

    def admit(self, distinct: DistinctKeys, rows: np.ndarray) -> None:
        """Gives rows to the keys that have none, in place; by one thread at a time. Raises InputError if the table is
        full."""
        with self._admitting, self._disk_errors():
            self._keys.admit(*distinct.asked, rows, distinct=True)

    def items(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The keys of the rows from `first` on, int64 [n], n at most `count`, and their values, float32 [n, dimension].

        Raises:
            InputError: there are texts among the keys; or as `look_up`.
        """
        with self._admitting:
            self._check_readable()
            rows = np.arange(first, min(first + count, len(self._keys)))
            if self._keys.index.vocabularies_of(rows).any():
                raise InputError("texts are not kept, only their fingerprints: read the rows by the texts",
                                 f"table {self.name!r}")  # fmt: skip
            values = np.empty((rows.size, self.store.layout.width), np.float32)
            self.store.read(rows, values, np.empty(rows.size, np.int64))
            return self._keys.index.keys_of(rows), np.ascontiguousarray(values[:, : self.dimension])

    def look_up(self, keys: KeyArray) -> tuple[np.ndarray, np.ndarray]:
        """Values to read, float32 [m, dimension], and the place of each of n keys, int64 [n], among them.

        Raises:
            InputError: rows are on disk and an engine has failed, or the disk fails.
        """
        if self.elsewhere is not None:
            return self.elsewhere(keys)
        with self._admitting:
            self._check_readable()
            rows, local, _ = self._keys.look_up(*keys)
        return np.ascontiguousarray(rows[:, : self.dimension]), local.astype(np.int64)

    def _check_readable(self) -> None:
        if self.broken is not None and self._folders:
            raise InputError(f"rows of {self.name!r} can't be read: an engine has failed: {self.broken}")

    def close(self) -> None:
        """Ends threads and closes files, if there are any; the table can't be used afterwards."""
        self._stack.close()

    def _disk_errors(self) -> AbstractContextManager[None]:
        return disk_errors(self._folders[0]) if self._folders else nullcontext()


def _room(row_bytes: int, folders: Sequence[Path]) -> int:
    """The most rows that a table may have."""
    memory = _SHARE * cgroups.free_memory()
    if not folders:
        return int(memory / (row_bytes + _KEY_BYTES))
    disk = min(shutil.disk_usage(folder).free for folder in folders) * len(folders)
    return max(1, int(min(memory / _PAGED_BYTES, _SHARE * disk / row_bytes)))
