"""Rows in a file that is mapped into memory. The system decides which pages are resident.

It exists for comparisons with the disk tier (`storage.io: mmap`). The file is a scratch file: a run resumes from its
checkpoints.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from marius_oac.runtime.files.atomic import disk_errors, remove_file
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.reserved import MappedFile


class MappedStore(MemoryStore):
    """A table in `FOLDER/NAME.rows`, which replaces an existing file."""

    def __init__(
        self,
        folder: Path,
        name: str,
        num_rows: int,
        layout: RowLayout,
        initial: RowInitial,
        capacity: int | None = None,
    ) -> None:
        """Raises InputError if the file can't be made."""
        self._path = folder / f"{name}.rows"
        super().__init__(name, num_rows, layout, initial, capacity)

    def _make_memory(self, num_bytes: int) -> mmap.mmap:
        with disk_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            remove_file(self._path)
            try:
                self._file = MappedFile(num_bytes, path=self._path)
                self._make_room(self.num_rows)
            except BaseException:
                self._path.unlink(missing_ok=True)
                raise
        return self._file.memory

    def extend(self, keys: np.ndarray) -> None:
        """See `ParameterStore.extend`. Raises InputError if the disk is full."""
        self._check_open()
        with disk_errors(self._path):
            self._make_room(self.num_rows + keys.size)
        super().extend(keys)

    def resize(self, num_rows: int) -> None:
        """See `ParameterStore.resize`. Raises InputError if the disk is full."""
        self._check_open()
        with disk_errors(self._path):
            self._make_room(num_rows)
        super().resize(num_rows)

    def _make_room(self, num_rows: int) -> None:
        self._file.take(min(num_rows, self.capacity) * self.layout.row_bytes)

    def _release(self) -> None:
        super()._release()
        self._file.close()
        self._path.unlink(missing_ok=True)
