"""Numeric columns of a click log: how numbers are written, missing values, limits and transforms, with the parameters
in the configuration.

A column becomes either a number for the model, float32, or the number of a bucket, which has a row like any other key.
Each value is computed independently in 64-bit floats, so it doesn't depend on the other values of its batch.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import NumericConfig
from marius_oac.data.logs.fingerprints import MISSING
from marius_oac.data.logs.labels import number_of
from marius_oac.data.logs.place import Place
from marius_oac.data.logs.schema import MISSING_TEXTS, TIME_HINT, is_text, looks_like_a_time, plain
from marius_oac.types import present

LIMIT = 10.0
"""The largest absolute value of a standardised number."""


def arrow_type(column: NumericConfig) -> pa.DataType:
    """The Arrow type that a column's texts are parsed as."""
    if column.written:
        return pa.string()
    return pa.float32() if column.raw and column.transform != "auto" else pa.float64()


def numbers_of(batch: pa.RecordBatch, config: LogConfig, place: Place) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The numbers of a batch, float32 [n, N], where N is `LogConfig.num_numbers`; and for each column with buckets the
    bucket's number or MISSING, int64 [n].

    A column whose transform is still auto is not transformed.

    Raises:
        InputError: a number is missing, and the configuration refuses that.
        ValueError: a median is needed that the configuration doesn't have.
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


def weights_of(batch: pa.RecordBatch, labels: np.ndarray, config: LogConfig, place: Place) -> np.ndarray:
    """The weights of a batch's examples, float32 [n], whose labels are given.

    Raises:
        InputError: a weight is missing, negative or beyond 32-bit floats.
    """
    found = present(config.weight)
    values = floats(batch.column(found.column), NumericConfig(name=found.column), pa.float64(), config, place)
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        value = values[wrong[0]]
        said = "is missing" if np.isnan(value) else f"is {value:g}, not a number from 0 to 3.4e+38"
        raise place.wrong(int(wrong[0]), f"the weight in column '{found.column}' {said}")
    return weights if found.of == "all" else np.where(labels == 1, weights, np.float32(1))


def floats(column: pa.Array, each: NumericConfig, kind: pa.DataType, config: LogConfig, place: Place) -> np.ndarray:
    """A column's numbers as floats of type `kind`, [n], NaN for missing ones.

    Raises:
        InputError: a text is no number.
    """
    values = _parsed(column, each, config, place, kind) if is_text(plain(column.type)) else _cast(column, kind)
    values = values.astype(f"f{kind.bit_width // 8}", copy=False)
    meant = [number for text in config.missing if (number := number_of(text)) is not None]  # such as -999
    return (
        np.where(np.isin(values, np.array(meant, values.dtype)), values.dtype.type(np.nan), values) if meant else values
    )


def _cast(column: pa.Array, kind: pa.DataType) -> np.ndarray:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_decimal(column.type):  # whose own conversion is off by a bit in one of eight numbers
        column = column.cast(pa.string())
    if column.type != kind:
        column = column.cast(kind, safe=False)
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values


def _parsed(column: pa.Array, each: NumericConfig, config: LogConfig, place: Place, kind: pa.DataType) -> np.ndarray:
    """The numbers of texts, floats of type `kind`, [n]."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts = pc.utf8_trim_whitespace(encoded.dictionary.cast(pa.string()))
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    missing = pc.is_in(texts, pa.array((*MISSING_TEXTS, *config.missing))).to_numpy(zero_copy_only=False)
    found = written_numbers(texts, each, kind)
    found = np.append(found, found.dtype.type(np.nan))
    wrong = np.flatnonzero(np.append(np.isnan(found[:-1]) & ~missing, False)[codes])
    if wrong.size:
        text = texts[int(codes[wrong[0]])].as_py()
        message = f"column '{each.name}' has invalid value '{text[:200]}' ({number_hint(text)})"
        raise place.wrong(int(wrong[0]), message)
    return found[codes]


def written_numbers(texts: pa.StringArray, way: NumericConfig, kind: pa.DataType | None = None) -> np.ndarray:
    """The numbers that texts without blanks around them are, if they are written in this way, floats of type `kind`
    (float64), [n]; NaN: none. Each is rounded once.

    A mark between thousands must stand before each three digits, or nowhere: 1,5 is not 15, and 0,125 not 125.
    """
    unit, mark, point = (re.escape(each or "") for each in (way.unit, way.thousands, way.decimal))
    if unit:
        texts = pc.replace_substring_regex(texts, rf"^([+-]?)\s*{unit}\s*", r"\1")
        texts = pc.replace_substring_regex(texts, rf"\s*{unit}$", "")
    single = rf"[0-9]+({point}[0-9]*)?|{point}[0-9]+"
    grouped = rf"[1-9][0-9]{{0,2}}({mark}[0-9]{{3}})+({point}[0-9]*)?|" if mark else ""
    shape = rf"^[+-]?({grouped}{single})([eE][+-]?[0-9]+)?$|^[+-]?(inf|infinity|Inf|Infinity)$"
    fits = pc.match_substring_regex(texts, shape)
    if way.thousands is not None:
        texts = pc.replace_substring(texts, way.thousands, "")
    texts = pc.if_else(fits, pc.replace_substring(texts, way.decimal, "."), None)
    return texts.cast(kind or pa.float64()).to_numpy(zero_copy_only=False)


def number_hint(text: str) -> str:
    """What a message adds to a text that stands in place of a number."""
    if looks_like_a_time(text):
        return f"a number is needed; {TIME_HINT}"
    if re.search("[0-9]", text) and re.search("[$€£¥₹%,]|USD|EUR|GBP", text):
        return "a number is needed; unit, thousands and decimal of its section say how numbers are written"
    if not re.search("[0-9]", text):
        return "a number is needed; data.missing lists texts that mean a missing one"
    return "a number is needed"


def transformed(values: np.ndarray, column: NumericConfig) -> np.ndarray:
    """Transforms values, float32 or float64 [n], none of them missing, for the model; not for columns with buckets."""
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
        return np.clip((values - present(column.center)) / present(column.scale), -LIMIT, LIMIT)


def signed_log1p(values: np.ndarray) -> np.ndarray:
    """sign(x) ln(1 + |x|), float64 [n]. Arrow calls the C library's logarithm for each value. NumPy's vectorised one
    may round a value differently depending on its position."""
    return np.copysign(pc.log1p(pa.array(np.abs(values))).to_numpy(), values)


def limited(values: np.ndarray, column: NumericConfig) -> np.ndarray:
    """Values [n], clipped to the column's `clip`, if it has one."""
    return values if column.clip is None else np.clip(values, *column.clip)


def _filled(column: pa.Array, each: NumericConfig, config: LogConfig, place: Place) -> tuple[np.ndarray, np.ndarray]:
    """Values with missing ones replaced, float32 or float64 [n]; and which were missing, bool [n]."""
    values = floats(column, each, pa.float32() if each.raw else pa.float64(), config, place)
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
    """The bucket of each value, from 0, int64 [n]; MISSING for missing values if the column has an indicator."""
    found = np.searchsorted(np.array(column.edges, np.float64), values, side="right").astype(np.int64)
    if column.indicator:
        found[missing] = MISSING
    return found
