"""The contract of every store of parameter rows, in memory or on disk.

Guarantees of every `ParameterStore`:
- Any number of threads may call any method at once, except `close`, `load`, `reset` and `resize`. One thread at a
  time may call `extend`, while others use the existing rows.
- A row is read and written as a whole, with value, optimizer state and timestamp.
- A call is a sequence of single-row operations in ascending order, not a transaction: concurrent calls may interleave
  between rows. Batches are validated above the store.
- A call that raises ValueError has changed nothing.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from marius_oac.errors import CheckpointError
from marius_oac.kernels.cpu import rows as kernels
from marius_oac.kernels.cpu.bfloat16 import bfloat16_bits
from marius_oac.runtime.closing import Closable
from marius_oac.storage.backing import IN_MEMORY, Backing, Several
from marius_oac.storage.checks import check_array, check_rows, check_timestamp
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.snapshots import PARTS, SavedTable, Snapshot
from marius_oac.types import NEVER

MAX_TIMESTAMP = kernels.MAX_TIMESTAMP
ROWS_PER_BLOCK = 1 << 14

Update = Callable[[np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class RowLayout:
    """The elements of a row and their layout in memory: `[ timestamp word | value | optimizer state ]`.

    A row starts at a multiple of 8 bytes. The optimizer state is always float32.

    Attributes:
        dimension: elements of the value.
        state_width: elements of the optimizer state.
        value_dtype: of the value.

    Raises:
        ValueError: a size or the dtype is invalid.
    """

    dimension: int
    state_width: int
    value_dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise ValueError(f"dimension must be at least 1, not {self.dimension}")
        if self.state_width < 0:
            raise ValueError(f"state_width must be at least 0, not {self.state_width}")
        if self.value_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"value_dtype must be float32 or bfloat16, not {self.value_dtype!r}")

    @property
    def width(self) -> int:
        """The number of elements of a row in a staging buffer."""
        return self.dimension + self.state_width

    @property
    def state_offset(self) -> int:
        """The offset in bytes of the optimizer state in a row."""
        value_bytes = self.dimension * (2 if self.value_dtype == "bfloat16" else 4)
        return kernels.WORD_BYTES + -(-value_bytes // 4) * 4

    @property
    def row_bytes(self) -> int:
        """The size of a row in memory in bytes, including timestamp word and padding."""
        return -(-(self.state_offset + 4 * self.state_width) // 8) * 8

    def table_at(self, address: int, stride: int | None = None) -> kernels.Table:
        """The kernels' description of rows from `address` on, contiguous or `stride` bytes apart."""
        narrow = self.value_dtype == "bfloat16"
        return kernels.Table(
            address=address,
            stride=self.row_bytes if stride is None else stride,
            row_bytes=self.row_bytes,
            dimension=self.dimension,
            bfloat16=(True,) if narrow else (),
            float_bytes=4 * (self.state_width if narrow else self.width),
            float_offset=self.state_offset if narrow else kernels.WORD_BYTES,
            buffer_offset=4 * self.dimension if narrow else 0,
            buffer_row_bytes=4 * self.width,
        )

    def reading(self, table: kernels.Table) -> dict[int, kernels.Table]:
        """What reads so many elements of each row of a table: see `RowAccess.read`."""
        return {elements: table.reading(elements) for elements in (0, self.dimension, self.width)}


class Block(NamedTuple):
    """Consecutive rows of a table."""

    first_row: int
    timestamps: np.ndarray  # int64 [n]
    rows: np.ndarray  # float32 [n, width]


class RowAccess(ABC):
    """The rows of a table, as batches read and write them.

    Staging buffers are float32 [n, width], C-contiguous: the value in `[:, :dimension]`, the optimizer state in
    `[:, dimension:]`. `rows` are int64 [n], ascending, without repetition, in `[0, num_rows)`. Anything else is a
    ValueError, as is using a closed store. Timestamps are `NEVER`, -1, to `MAX_TIMESTAMP`.
    """

    name: str
    layout: RowLayout

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of rows."""

    def read(self, rows: np.ndarray, into: np.ndarray, timestamps: np.ndarray) -> None:
        """Copies rows to `into`, float32 [n, width], and their timestamps to `timestamps`, int64 [n].

        With `into` [n, dimension] only values are copied, with [n, 0] only timestamps.
        """
        self._check_rows(rows)
        columns = into.shape[-1] if into.shape[-1:] in ((0,), (self.layout.dimension,)) else self.layout.width
        check_array(self.name, "into", into, np.float32, (rows.size, columns), written=True)
        check_array(self.name, "timestamps", timestamps, np.int64, (rows.size,), written=True)
        self._read(rows, into, timestamps)

    def commit(self, rows: np.ndarray, values: np.ndarray, timestamp: int) -> int:
        """Overwrites each row whose timestamp is smaller than `timestamp`. Returns how many rows were not overwritten.

        This is the write rule of OAC (Waleffe and Mohoney, section 3.2, "Parameter Timestamps"): in any order of calls,
        the values of the largest timestamp remain. `values` is float32 [n, width].
        """
        self._check_write(rows, "values", values, timestamp)
        return self._commit(rows, values, timestamp)

    def overwrite(self, rows: np.ndarray, values: np.ndarray, timestamp: int, seen: np.ndarray) -> int:
        """Overwrites every row and its timestamp: the last writer wins, as in the paper's asynchronous baseline.

        `values` is float32 [n, width]; `seen`, int64 [n], are the timestamps that the caller read. Returns how many
        rows had another timestamp, each of which is a lost update of another batch.
        """
        self._check_write(rows, "values", values, timestamp)
        check_array(self.name, "seen", seen, np.int64, (rows.size,))
        return self._overwrite(rows, values, timestamp, seen)

    def add(self, rows: np.ndarray, deltas: np.ndarray, timestamp: int) -> None:
        """Adds `deltas`, float32 [n, width], to the rows. A row keeps the larger timestamp."""
        self._check_write(rows, "deltas", deltas, timestamp)
        self._add(rows, deltas, timestamp)

    def apply(self, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int) -> None:
        """Runs a row optimizer at the store. A row keeps the larger timestamp.

        `update(rows, gradients)` gets some rows of the call at a time, float32 [k, width] and [k, dimension], and
        changes `rows` in place while they are locked. It must treat rows independently and must not use the store. If
        it raises, its rows stay unchanged and the error is raised; rows of earlier calls of `update` are written.
        `gradients` is float32 [n, dimension].
        """
        self._check_rows(rows)
        check_array(self.name, "gradients", gradients, np.float32, (rows.size, self.layout.dimension))
        check_timestamp(self.name, timestamp)
        self._apply(rows, gradients, update, timestamp)

    @abstractmethod
    def _read(self, rows: np.ndarray, into: np.ndarray, timestamps: np.ndarray) -> None: ...

    @abstractmethod
    def _commit(self, rows: np.ndarray, values: np.ndarray, timestamp: int) -> int: ...

    @abstractmethod
    def _overwrite(self, rows: np.ndarray, values: np.ndarray, timestamp: int, seen: np.ndarray) -> int: ...

    @abstractmethod
    def _add(self, rows: np.ndarray, deltas: np.ndarray, timestamp: int) -> None: ...

    @abstractmethod
    def _apply(self, rows: np.ndarray, gradients: np.ndarray, update: Update, timestamp: int) -> None: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    def _check_rows(self, rows: np.ndarray) -> None:
        self._check_open()
        check_rows(self.name, rows, self.num_rows)

    def _check_write(self, rows: np.ndarray, name: str, values: np.ndarray, timestamp: int) -> None:
        self._check_rows(rows)
        check_array(self.name, name, values, np.float32, (rows.size, self.layout.width))
        check_timestamp(self.name, timestamp)


class ParameterStore(RowAccess, Closable):
    """A table of rows with timestamps.

    A store starts with `num_rows` rows with the values of `initial`, whose keys are their ids. It may grow up to
    `capacity` rows: `extend` appends rows with keys from the caller.
    """

    num_rows: int = 0
    backing: Backing = IN_MEMORY
    """What brings the rows to where they are used; the stores of a run share one."""

    def __init__(
        self, name: str, num_rows: int, layout: RowLayout, initial: RowInitial, capacity: int | None = None
    ) -> None:
        capacity = num_rows if capacity is None else capacity
        if not 0 <= num_rows <= capacity:
            raise ValueError(f"table {name!r}: num_rows must be 0 to {capacity}, not {num_rows}")
        self.name = name
        self.num_rows = num_rows
        self.capacity = capacity
        self.layout = layout
        self.initial = initial
        self._closed = False

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory of the store in bytes."""

    def initialize(self) -> None:
        """Gives the rows their initial values, if the store has not done so yet. It need not be called: whatever needs
        these values does so. The caller chooses the time by it."""
        self._check_open()

    def extend(self, keys: np.ndarray) -> None:
        """Appends a row with its initial value for each of `keys`, int64 [k].

        Raises:
            ValueError: there would be more rows than `capacity`.
        """
        self._check_open()
        check_array(self.name, "keys", keys, np.int64, (keys.size,))
        if self.num_rows + keys.size > self.capacity:
            raise ValueError(
                f"table {self.name!r}: {keys.size} more rows than {self.num_rows} do not fit, there is room for "
                f"{self.capacity}"
            )
        self._reset(np.arange(self.num_rows, self.num_rows + keys.size), keys)
        self.num_rows += keys.size

    def resize(self, num_rows: int) -> None:
        """Sets the number of rows. Their content is undefined until `load`. Nothing else may use the store."""
        self._check_open()
        if not 0 <= num_rows <= self.capacity:
            raise ValueError(f"table {self.name!r}: {num_rows} is not in 0 to {self.capacity}")
        self.num_rows = num_rows

    def reset(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Resets `rows` to the initial values of `keys`, int64 [n], as if they had never been written."""
        self._check_rows(rows)
        check_array(self.name, "keys", keys, np.int64, (rows.size,))
        self._reset(rows, keys)

    def held(self) -> RowAccess:
        """The same rows for a caller that has claimed all that it uses (see `Backing`)."""
        return self

    def snapshot(self) -> Snapshot:
        """The table as it is now, for a checkpoint.

        Raises:
            FloatingPointError: rows that it does not hand out hold NaN or infinite numbers.
        """
        arrays = {part: (shape, np.int64 if part == "timestamps" else np.float32) for part, shape in self._shapes()}
        return Snapshot(arrays, map(self._parts_of, self.blocks()))

    def restore(self, saved: SavedTable) -> None:
        """Sets the table to a snapshot of a store of any kind. Nothing else may use the store.

        Raises:
            CheckpointError: it is that of another table, or damaged.
        """
        self._check_open()
        shapes = {part: saved.rows(part).shape for part in PARTS}
        if shapes != dict(self._shapes()):
            raise CheckpointError(f"table {self.name!r} has another shape, {list(shapes['values'])}", saved.path)
        self._take(saved)

    def flush(self) -> None:
        """Waits until everything written so far is in the store's permanent storage."""
        self._check_open()
        self._flush()

    def close(self) -> None:
        """Frees the memory. Nothing else may use the store. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._release()

    def blocks(self, rows_per_block: int = ROWS_PER_BLOCK) -> Iterator[Block]:
        """Yields the whole table in row order, in new arrays. A row is read when its block is yielded."""
        if rows_per_block < 1:
            raise ValueError(f"rows_per_block must be at least 1, not {rows_per_block}")
        for first in range(0, self.num_rows, rows_per_block):
            rows = np.arange(first, min(first + rows_per_block, self.num_rows))
            block = Block(first, np.empty(rows.size, np.int64), np.empty((rows.size, self.layout.width), np.float32))
            self.read(rows, block.rows, block.timestamps)
            yield block

    def load(self, first_row: int, timestamps: np.ndarray, rows: np.ndarray) -> None:
        """Sets the rows from `first_row` on: timestamps int64 [n], rows float32 [n, width]."""
        self._check_open()
        count = len(timestamps)
        if not 0 <= first_row <= first_row + count <= self.num_rows:
            raise ValueError(
                f"table {self.name!r}: rows {first_row} to {first_row + count - 1} are not all in 0 to "
                f"{self.num_rows - 1}"
            )
        check_array(self.name, "timestamps", timestamps, np.int64, (count,))
        check_array(self.name, "rows", rows, np.float32, (count, self.layout.width))
        if count and not NEVER <= timestamps.min() <= timestamps.max() <= MAX_TIMESTAMP:
            raise ValueError(f"table {self.name!r}: timestamps must be {NEVER} to {MAX_TIMESTAMP}")
        self._restore(np.arange(first_row, first_row + count), rows, timestamps)

    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of values and optimizer state in row order.

        It covers the little-endian bytes as stored (bfloat16 values as two bytes), without timestamps and padding, so
        the same rows have the same fingerprint in every kind of store.
        """
        digest = hashlib.sha256()
        dimension = self.layout.dimension
        for block in self.blocks():
            if self.layout.value_dtype == "float32":
                digest.update(block.rows.astype("<f4", copy=False))
                continue
            stored = np.empty((len(block.rows), 2 * dimension + 4 * self.layout.state_width), np.uint8)
            stored[:, : 2 * dimension] = bfloat16_bits(block.rows[:, :dimension]).astype("<u2").view(np.uint8)
            stored[:, 2 * dimension :] = np.ascontiguousarray(block.rows[:, dimension:], "<f4").view(np.uint8)
            digest.update(stored)
        return digest.hexdigest()

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        layout = self.layout
        shapes = (self.num_rows, layout.dimension), (self.num_rows, layout.state_width), (self.num_rows,)
        return zip(PARTS, shapes, strict=True)

    def _parts_of(self, block: Block) -> dict[str, np.ndarray]:
        dimension = self.layout.dimension
        return dict(zip(PARTS, (block.rows[:, :dimension], block.rows[:, dimension:], block.timestamps), strict=True))

    def _take(self, saved: SavedTable) -> None:
        """Loads a table of this shape, block by block."""
        for first in range(0, self.num_rows, ROWS_PER_BLOCK):
            # Mapped anew for each block: a page that was read counts as our memory until its mapping goes.
            values, state, timestamps = (saved.rows(part)[first : first + ROWS_PER_BLOCK] for part in PARTS)
            saved.check_timestamps(timestamps)
            self.load(first, np.array(timestamps), np.concatenate((values, state), axis=1))

    @abstractmethod
    def _restore(self, rows: np.ndarray, values: np.ndarray, timestamps: np.ndarray) -> None: ...

    def _reset(self, rows: np.ndarray, keys: np.ndarray) -> None:
        for first in range(0, rows.size, ROWS_PER_BLOCK):
            block = rows[first : first + ROWS_PER_BLOCK]
            values = np.empty((block.size, self.layout.width), np.float32)
            self.initial.fill(keys[first : first + ROWS_PER_BLOCK], values, self.layout.dimension)
            self._restore(block, values, np.full(block.size, NEVER))

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _release(self) -> None: ...

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"table {self.name!r}: the store is closed")


def backing_of(stores: Sequence[ParameterStore]) -> Backing:
    """What the stores of a run share; where they have several backings, these as one."""
    found = {id(store.backing): store.backing for store in stores}
    if len(found) > 1:
        return Several([store.backing for store in stores])
    return next(iter(found.values()), IN_MEMORY)
