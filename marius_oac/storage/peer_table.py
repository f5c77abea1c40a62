"""Tables and arrays in the memory of other processes of this machine, read like those of a checkpoint.

Nothing else may use a store while others read it. What describes them is plain data (`about`), which processes send
each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.kernels.cpu import rows as kernels
from marius_oac.runtime.machine.peer_memory import PeerMemory
from marius_oac.storage.contract import ParameterStore, RowLayout
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.snapshots import PARTS, LoadsRows, RowArray, SavedTable


def about_array(array: np.ndarray) -> dict[str, Any]:
    """Describes a contiguous array of this process, which the caller keeps."""
    return {"memory": asdict(PeerMemory.of(array)), "shape": list(array.shape), "dtype": array.dtype.str}


def about_table(store: ParameterStore, memory: np.ndarray) -> dict[str, Any]:
    """Describes the rows of a store that lie in `memory` (`ParameterStore.memory`), which the caller keeps."""
    return {"memory": asdict(PeerMemory.of(memory)), "rows": store.num_rows, "layout": asdict(store.layout)}


@dataclass(frozen=True)
class PeerArray:
    """An array, a copy of which is made of what is indexed by a slice. See `RowArray`."""

    memory: PeerMemory
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def load(cls, about: Mapping[str, Any]) -> PeerArray:
        """From what `about_array` returned."""
        return cls(PeerMemory(**about["memory"]), tuple(about["shape"]), np.dtype(about["dtype"]))

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice) -> np.ndarray:
        first, end, step = which.indices(len(self))
        if step != 1:
            raise ValueError("only consecutive elements can be read")
        found = np.empty((max(0, end - first), *self.shape[1:]), self.dtype)
        if found.size:
            self.memory.read(first * (self.nbytes // len(self)), found.reshape(-1).view(np.uint8))
        return found


class PeerTable(SavedTable):
    """A table whose rows lie packed in the memory of its owner.

    Args:
        name: of the table. owner: says in errors whose it is.
        about: what `about_table` returned.
    """

    def __init__(self, name: str, owner: Path, about: Mapping[str, Any]):
        super().__init__(name, owner, self._column)
        self._memory, self._rows = PeerMemory(**about["memory"]), int(about["rows"])
        self._layout = RowLayout(**about["layout"])

    def blocks(self) -> Sequence[tuple[int, int]]:
        """See `SavedTable.blocks`: any row can be read by itself."""
        return [(self._layout.row_bytes, self._layout.row_bytes)]

    def read(self, which: slice) -> tuple[np.ndarray, np.ndarray]:
        """See `SavedTable.read`."""
        first, end, _ = which.indices(self._rows)
        packed, layout = self._packed(range(first, max(first, end))), self._layout
        count = len(packed)
        found, timestamps = np.empty((count, layout.width), np.float32), np.empty(count, np.int64)
        reading = layout.reading(layout.table_at(packed.ctypes.data))[layout.width]
        kernels.read(reading, np.arange(count), found, timestamps)
        return found, timestamps

    def load(self, store: LoadsRows, which: range, first: int, own: np.ndarray | None = None) -> None:
        """See `SavedTable.load`."""
        size = self._layout.row_bytes
        if type(store) is not MemoryStore or store.layout != self._layout:
            super().load(store, which, first, own)
        elif own is None:
            self._memory.read(which.start * size, store.packed(first, len(which)))
        else:
            to = store.packed(first, own.size).reshape(-1, size)
            np.take(self._packed(which), own, axis=0, out=to, mode="clip")  # "raise" would copy them once more

    def _packed(self, which: range) -> np.ndarray:
        """Rows as they lie, uint8 [n, row_bytes], at a multiple of 8 bytes."""
        rows = np.empty((len(which), self._layout.row_bytes // 8), np.int64).view(np.uint8)
        self._memory.read(which.start * self._layout.row_bytes, rows.reshape(-1))
        return rows

    def _column(self, part: str) -> RowArray:
        return _Column(self, PARTS.index(part), self._rows, self._layout)


class _Column:
    """One of `PARTS` of a table."""

    def __init__(self, table: PeerTable, part: int, rows: int, layout: RowLayout):
        self._table, self._part, self._dimension = table, part, layout.dimension
        self.shape = [(rows, layout.dimension), (rows, layout.state_width), (rows,)][part]
        self.dtype = np.dtype([np.float32, np.float32, np.int64][part])
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice) -> np.ndarray:
        found, timestamps = self._table.read(which)
        return (found[:, : self._dimension], found[:, self._dimension :], timestamps)[self._part]
