"""Initial values of rows, a pure function of (seed, table name, key), so that they need not be stored.

The random numbers are counter-based: element j of the row with key k is a hash (splitmix64; Steele, Lea and Flood,
OOPSLA 2014) of (seed, table, k, j). Only integer operations and those of `kernels.cpu.normal` are used, which round the
same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.normal import quantiles

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ROWS_AT_ONCE = 256  # their random numbers stay in the second-level cache


@compiled
def _mix(state):
    """Output function of splitmix64."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@compiled
def _uniforms(keys, dimension, stream, p):
    """Fills in numbers of (0, 1) for rows with `keys`, int64 [n]: `p` float64 [n * dimension]."""
    for i in range(keys.size):
        row_stream = _mix(stream + np.uint64(keys[i]) * _GOLDEN)
        for j in range(dimension):
            bits = _mix(row_stream + np.uint64(j + 1) * _GOLDEN)
            # The middles of 2**52 equal steps: never 0 or 1.
            p[i * dimension + j] = (np.float64(bits >> np.uint64(12)) + 0.5) * 2.0**-52


@compiled
def _fill_normal(keys, flat, dimension, state_width, stream, scale, state_initial):
    width, most = dimension + state_width, min(_ROWS_AT_ONCE, keys.size)
    p, normal = np.empty(most * dimension), np.empty(most * dimension)
    for first in range(0, keys.size, _ROWS_AT_ONCE):
        count = min(_ROWS_AT_ONCE, keys.size - first)
        numbers = count * dimension
        _uniforms(keys[first : first + count], dimension, stream, p)
        quantiles(p[:numbers], normal[:numbers])
        for i in range(count):
            at = (first + i) * width
            for j in range(dimension):
                # Adding 0.0 makes a -0.0 positive: rows of scale 0 are all zero bits.
                flat[at + j] = scale * normal[i * dimension + j] + 0.0
            for j in range(dimension, width):
                flat[at + j] = state_initial


@compiled
def _fill_uniform(keys, flat, dimension, state_width, stream, scale, state_initial):
    width = dimension + state_width
    for i in range(keys.size):
        row_stream = _mix(stream + np.uint64(keys[i]) * _GOLDEN)
        at = i * width
        for j in range(dimension):
            bits = _mix(row_stream + np.uint64(j + 1) * _GOLDEN)
            # The middles of 2**24 equal steps of (-1, 1), exact in float32.
            odd = 2 * np.int64(bits >> np.uint64(40)) + 1 - (1 << 24)
            flat[at + j] = scale * (np.float64(odd) * 2.0**-24) + 0.0
        for j in range(dimension, width):
            flat[at + j] = state_initial


@dataclass(frozen=True)
class RowInitial:
    """The initial rows of one table: values uniform in (-scale, scale) or normal with standard deviation `scale`, and a
    constant optimizer state.

    Attributes:
        kind: of the distribution.
        scale: of the distribution.
        seed: of the run.
        table: the table's name.
        state_initial: every element of the optimizer state.

    Raises:
        ValueError: the kind is unknown, or a number is not finite or negative.
    """

    kind: str
    scale: float
    seed: int
    table: str
    state_initial: float = 0.0
    recordable: ClassVar[bool] = True
    """Whether these attributes are all that it takes to make the values anew. If not, a table on disk is written before
    training, as a checkpoint could not say what its other rows hold."""

    def __post_init__(self) -> None:
        if self.kind not in ("uniform", "normal"):
            raise ValueError(f"kind must be uniform or normal, not {self.kind!r}")
        if not 0.0 <= self.scale < np.inf:
            raise ValueError(f"scale must be finite and at least 0, not {self.scale}")
        if not np.isfinite(self.state_initial):
            raise ValueError(f"state_initial must be finite, not {self.state_initial}")

    @property
    def plain(self) -> RowInitial:
        """These attributes alone, without those of a subclass."""
        return RowInitial(**{each.name: getattr(self, each.name) for each in fields(RowInitial)})

    def fill(self, keys: np.ndarray, rows: np.ndarray, dimension: int) -> None:
        """Writes the initial values of the rows with `keys`, int64 [n], to `rows`, float32 [n, width].

        It doesn't hold the GIL, so parts of a table can be filled in parallel.

        Raises:
            ValueError: an array has another type or shape.
        """
        if keys.dtype != np.int64 or keys.ndim != 1 or not keys.flags.c_contiguous:
            raise ValueError(f"keys must be int64 [n], contiguous, not {keys.dtype} {list(keys.shape)}")
        if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != keys.size or not rows.flags.c_contiguous:
            raise ValueError(
                f"rows must be float32 [{keys.size}, width], contiguous, not {rows.dtype} {list(rows.shape)}"
            )
        if not 1 <= dimension <= rows.shape[1]:
            raise ValueError(f"dimension {dimension} is not in 1 to the width of the rows, {rows.shape[1]}")
        state_width = rows.shape[1] - dimension
        # The hash relies on overflow, of which NumPy's scalars would warn without the JIT.
        with np.errstate(over="ignore"):
            (_fill_normal if self.kind == "normal" else _fill_uniform)(
                keys, rows.reshape(-1), dimension, state_width, self._stream(), float(self.scale),
                float(self.state_initial),
            )  # fmt: skip

    def _stream(self) -> np.uint64:
        digest = hashlib.sha256(f"{self.seed} {self.table}".encode()).digest()
        return np.uint64(int.from_bytes(digest[:8], "little"))


@dataclass(frozen=True)
class GivenInitial(RowInitial):
    """Initial rows whose values a function computes from keys and from the random numbers of the other attributes.

    Attributes:
        give: takes keys, int64 [n], and random numbers, float32 [n, dimension], which it may overwrite; returns values,
            float32 [n, dimension], which must depend on the row's key and its random numbers only. It is called from
            several threads at once.
    """

    recordable: ClassVar[bool] = False
    give: Callable[[np.ndarray, np.ndarray], np.ndarray] = field(kw_only=True)

    def fill(self, keys: np.ndarray, rows: np.ndarray, dimension: int) -> None:
        """See `RowInitial.fill`. Raises what the function raises."""
        super().fill(keys, rows, dimension)
        rows[:, :dimension] = self.give(keys, rows[:, :dimension].copy())
