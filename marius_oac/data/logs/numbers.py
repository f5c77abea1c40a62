"""Numeric columns of a click log: missing values, limits and transforms, as the configuration has them settled.

A column becomes a number of the model, float32, or the number of a bucket, which has a row like any other key. What is
computed is computed value by value in 64-bit floats, so no value hangs on the others that it is read with.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.ctr import LogConfig, NumericConfig
from marius_oac.data.logs.fingerprints import MISSING
from marius_oac.data.logs.place import Place

LIMIT = 10.0
"""No standardised number is farther from 0."""


def arrow_type(column: NumericConfig) -> pa.DataType:
    """What texts of a column are parsed as."""
    return pa.float32() if column.raw and column.transform != "auto" else pa.float64()


def numbers_of(batch: pa.RecordBatch, config: LogConfig, place: Place) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The numbers of a batch, float32 [n, N], as `LogConfig.num_numbers` counts them; and of each column of buckets the
    bucket's number or MISSING, int64 [n].

    A column of transform auto that is not settled is left as it is.

    Raises:
        InputError: a number is missing, and the configuration refuses that.
    """
    numbers = np.empty((batch.num_rows, config.num_numbers), np.float32)
    buckets: dict[str, np.ndarray] = {}
    at, indicator = 0, len(config.plain_numbers)
    for each in config.numeric:
        values, missing = _filled(batch.column(each.name), each, config, place)
        if each.transform == "quantiles":
            buckets[each.name] = _buckets(values, missing, each)
            continue
        numbers[:, at] = transformed(values, each)
        at += 1
        if each.indicator:
            numbers[:, indicator] = missing
            indicator += 1
    return numbers, buckets


def floats(column: pa.Array, kind: pa.DataType) -> np.ndarray:
    """Numbers as floats, NaN for null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if column.type != kind:
        column = column.cast(kind, safe=False)
    return column.to_numpy(zero_copy_only=False)


def transformed(values: np.ndarray, column: NumericConfig) -> np.ndarray:
    """Values, float32 or float64 [n], without missing ones, as the model gets them; not for buckets."""
    if column.transform == "log_squared":
        # Wang et al., "Field-aware factorization in the Criteo challenge" (the 3 Idiots' solution, 2014), unrounded.
        large = values > 2
        values = values.copy()
        values[large] = np.square(np.log(values[large]))
        return values
    if column.transform in ("auto", "none"):
        return values
    if column.transform == "log1p":
        values = signed_log1p(values)
    with np.errstate(over="ignore"):
        return np.clip((values - column.center) / column.scale, -LIMIT, LIMIT)


def signed_log1p(values: np.ndarray) -> np.ndarray:
    """sign(x) ln(1 + |x|), float64 [n]; by Arrow, which takes the C library's logarithm of one value after the other,
    while NumPy's vectors would round a value according to its place."""
    return np.copysign(pc.log1p(pa.array(np.abs(values))).to_numpy(), values)


def limited(values: np.ndarray, column: NumericConfig) -> np.ndarray:
    """Values within `clip`."""
    return values if column.clip is None else np.clip(values, *column.clip)


def _filled(column: pa.Array, each: NumericConfig, config: LogConfig, place: Place) -> tuple[np.ndarray, np.ndarray]:
    """Values without missing ones, float32 or float64 [n]; and which were missing, bool [n]."""
    values = floats(column, pa.float32() if each.raw else pa.float64())
    missing = ~np.isfinite(values)
    if missing.any():
        becomes = config.missing_of(each)
        if becomes == "refuse":
            row = int(np.argmax(missing))
            width = 32 if each.raw else 64
            what = "is empty or NaN" if np.isnan(values[row]) else f"is infinite or beyond {width}-bit floats"
            raise place.wrong(row, f"the number in column '{each.name}' {what} (missing_numbers can replace such)")
        if becomes == "median":
            raise ValueError(f"the median of {each.name} is not known: the configuration is not settled")
        values = np.where(missing, values.dtype.type(0.0 if becomes is None else becomes), values)
    return limited(values, each), missing


def _buckets(values: np.ndarray, missing: np.ndarray, column: NumericConfig) -> np.ndarray:
    """The number of each value's bucket, from 0, int64 [n]; MISSING where it is told that the value is."""
    found = np.searchsorted(np.array(column.edges, np.float64), values, side="right").astype(np.int64)
    if column.indicator:
        found[missing] = MISSING
    return found
