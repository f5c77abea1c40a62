"""Initial values of rows, a pure function of (seed, table name, key), so that they need not be stored.

The random numbers are counter-based: element j of the row with key k is a hash (splitmix64; Steele, Lea and Flood,
OOPSLA 2014) of (seed, table, k, j). Only integer operations, + - * / and the square root are used, which round the same
on every machine. Logarithm and quantile are implemented here because C libraries differ in the last bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np

from marius_oac.kernels.cpu.jit import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LN_2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476

# Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37, 1988: numerator and denominator, highest power first, near
# the centre and in the two parts of the tail.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


@compiled
def _mix(state):
    """Output function of splitmix64."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@compiled
def _ratio(coefficients, x):
    numerator, denominator = 0.0, 0.0
    for i in range(8):
        numerator = numerator * x + coefficients[0][i]
        denominator = denominator * x + coefficients[1][i]
    return numerator / denominator


@compiled
def natural_logarithm(x):
    """ln x for 2**-64 <= x < 1: ln(m * 2**e) = e ln 2 + 2 artanh((m - 1) / (m + 1)), to about 1e-15."""
    exponent = 0
    while x < _SQRT_HALF:
        x *= 2.0
        exponent -= 1
    s = (x - 1.0) / (x + 1.0)
    square = s * s
    series = 0.0
    for power in range(21, 0, -2):
        series = series * square + 1.0 / power
    return exponent * _LN_2 + 2.0 * s * series


@compiled
def normal_quantile(p):
    """Quantile of the standard normal distribution for 2**-64 <= p < 1, to about 1e-15 of its size."""
    q = p - 0.5
    if abs(q) <= 0.425:
        return q * _ratio(_CENTRE, 0.180625 - q * q)
    r = np.sqrt(-natural_logarithm(p if q < 0.0 else 1.0 - p))
    tail = _ratio(_TAIL, r - 1.6) if r <= 5.0 else _ratio(_FAR_TAIL, r - 5.0)
    return -tail if q < 0.0 else tail


@compiled
def _fill(keys, flat, dimension, state_width, stream, scale, state_initial, normal):
    width = dimension + state_width
    for i in range(keys.size):
        row_stream = _mix(stream + np.uint64(keys[i]) * _GOLDEN)
        row = flat[i * width : (i + 1) * width]
        # Adding 0.0 makes a -0.0 positive: rows of scale 0 are all zero bits.
        for j in range(dimension):
            bits = _mix(row_stream + np.uint64(j + 1) * _GOLDEN)
            if normal:
                # The middles of 2**52 equal steps: never 0 or 1.
                p = (np.float64(bits >> np.uint64(12)) + 0.5) * 2.0**-52
                row[j] = scale * normal_quantile(p) + 0.0
            else:
                # The middles of 2**24 equal steps of (-1, 1), exact in float32.
                odd = 2 * np.int64(bits >> np.uint64(40)) + 1 - (1 << 24)
                row[j] = scale * (np.float64(odd) * 2.0**-24) + 0.0
        row[dimension:] = state_initial


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
            _fill(
                keys, rows.reshape(-1), dimension, state_width, self._stream(), float(self.scale),
                float(self.state_initial), self.kind == "normal",
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
