"""Rows in a file that is mapped into memory: what is there at a moment is the system's decision.

For measurements against the disk tier (`storage.io: mmap`). The file is a scratch file: a run goes on from its
checkpoints.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from marius_oac.errors import InputError
from marius_oac.files import remove_file
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore


class MappedStore(MemoryStore):
    """A table in `FOLDER/NAME.rows`, whatever was there before."""

    def __init__(
        self,
        folder: Path,
        name: str,
        num_rows: int,
        layout: RowLayout,
        initial: RowInitial,
        capacity: int | None = None,
    ) -> None:
        """Raises InputError where the file can't be made."""
        self._path = folder / f"{name}.rows"
        super().__init__(name, num_rows, layout, initial, capacity)

    def _make_memory(self, num_bytes: int) -> mmap.mmap:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            remove_file(self._path)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.posix_fallocate(descriptor, 0, max(num_bytes, 1))  # else a full disk is a SIGBUS later
                memory = mmap.mmap(descriptor, max(num_bytes, 1), flags=mmap.MAP_SHARED)
            except BaseException:
                self._path.unlink()
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise InputError(f"can't be written: {error.strerror}", self._path) from None
        memory.madvise(mmap.MADV_RANDOM)
        return memory

    def _release(self) -> None:
        super()._release()
        self._path.unlink(missing_ok=True)
