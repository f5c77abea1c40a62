"""What the first examples of a log decide of its numeric columns: transforms, their parameters, medians.

The examples are the first 65,536 of the first file, so that the outcome is the same whether a run gets all days at once
or one after the other. What is settled stands in the configuration, and with it in the run's folder, on every node and
in every later evaluation; nothing is decided twice.

`auto` is a function of the examples' finite values x, within `clip`, and their skewness g = m3 / m2 ** 1.5:

    no other feature has rows      quantiles: a model needs some (but for a column of one value)
    at most two different values   standardize
    |g(x)| <= 1.5                  standardize
    |g(ln(1 + x))| <= 1.5          log1p, with -ln(1 - x) for negative x
    else                           quantiles: most values are one, or it has tails that a logarithm does not tame

Sums are rounded once (`math.fsum`), so that machines agree on them to the last bit; center and scale are then rounded
to a millionth of the scale, which makes them readable and forgives a C library the last bit of its logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from marius_oac.config.ctr import LogConfig, NumericConfig
from marius_oac.data.logs.columns import convert
from marius_oac.data.logs.files import BlockReader, LogFile
from marius_oac.data.logs.labels import labels_of
from marius_oac.data.logs.numbers import floats, limited, signed_log1p
from marius_oac.data.logs.place import place_of

EXAMPLES = 1 << 16
BUCKETS = 32
SKEWED = 1.5
_DIGITS = 6  # of a scale, behind the first
_EXACT = 2.0**53  # integers up to here are 64-bit floats
_CONSTANT = 1e-12  # of the center: a scale that is smaller is but rounding
_LISTED = 8  # columns that a note names of each kind


def settle(config: LogConfig, files: Sequence[LogFile]) -> tuple[LogConfig, list[str]]:
    """The configuration with everything given that the first examples decide, and what is to be said of that.

    Raises:
        InputError: the examples have no labels, or numbers that are missing though the configuration refuses that.
    """
    file = files[0]
    with BlockReader(files[:1], config) as reader:
        block = reader.lazy_block(0, 0, min(EXAMPLES, file.rows))
        parsed = list(block.raw.parse(np.arange(block.size)))
    found, notes = settle_by(config, file.path, parsed)
    chosen = _chosen(config, found)
    if chosen:
        notes.insert(0, f"numbers by the first {block.size:,} examples of {file.path.name}: {chosen}")
    return found, notes


def settle_by(
    config: LogConfig, path: Path, parsed: Sequence[tuple[np.ndarray, pa.RecordBatch]]
) -> tuple[LogConfig, list[str]]:
    """As `settle`, by examples of a file that have been parsed: their numbers in the file, from 0, and columns."""
    for rows, batch in parsed:
        labels_of(batch.column(config.label.column), config.label, place_of(path, rows, config))
    keyed = any(config.keyed())
    columns, notes = [], []
    for each in config.numeric:
        values = np.concatenate([floats(batch.column(each.name), pa.float64()) for _, batch in parsed])
        columns.append(_settled(each, values, config, keyed))
        notes += _strange(columns[-1], values)
    found = config.model_copy(update={"numeric": tuple(columns)})
    positive = 0
    for rows, batch in parsed:
        positive += int(np.count_nonzero(convert(batch, found, True, path, rows).labels))
    if not positive and config.label.positive:
        meant = ", ".join(config.label.positive)
        notes.append(f"no label of the first examples of {path.name} means 1, which {meant} does (data.label.positive)")
    return found, notes


def _settled(column: NumericConfig, values: np.ndarray, config: LogConfig, keyed: bool) -> NumericConfig:
    """A column with transform, parameters and median, of its values, float64 [n]."""
    known = values[np.isfinite(values)]
    inside = limited(known, column)
    given: dict[str, object] = {}
    if column.transform == "auto":
        given["transform"] = _best(inside, keyed)
    settled = column.model_copy(update=given)
    if config.missing_of(settled) == "median":
        given["missing"] = float(np.median(known)) if known.size else 0.0
    if settled.transform in ("standardize", "log1p"):
        center, scale = _moments(signed_log1p(inside) if settled.transform == "log1p" else inside)
        given["center"] = center if column.center is None else column.center
        given["scale"] = scale if column.scale is None else column.scale
    if settled.transform == "quantiles" and column.edges is None:
        given["edges"] = tuple(_edges(inside, column.buckets or BUCKETS).tolist())
    return column.model_copy(update=given)


def _best(values: np.ndarray, keyed: bool) -> str:
    """The rule of `auto`; see above."""
    different = np.unique(values).size
    if not different:
        return "log1p"  # nothing is known of it: whatever comes, it stays small
    if not keyed:
        return "quantiles" if different > 1 else "standardize"
    if different <= 2 or abs(_skewness(values)) <= SKEWED:
        return "standardize"
    return "log1p" if abs(_skewness(signed_log1p(values))) <= SKEWED else "quantiles"


def _scaled(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Values by the largest of them, so that no square overflows, and that."""
    most = float(np.abs(values).max(initial=0.0))
    return (values / most if most else values), most


def _skewness(values: np.ndarray) -> float:
    """0 where all are the same."""
    scaled, _ = _scaled(values)
    away = scaled - math.fsum(scaled) / scaled.size
    second = math.fsum(away**2) / away.size
    return math.fsum(away**3) / away.size / second**1.5 if second > _CONSTANT**2 else 0.0


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation, rounded; (that value, 1) where all are the same, (0, 1) where there are none."""
    if not values.size:
        return 0.0, 1.0
    scaled, most = _scaled(values)
    mean = math.fsum(scaled) / scaled.size
    scale = math.sqrt(math.fsum((scaled - mean) ** 2) / scaled.size)
    if scale <= _CONSTANT * abs(mean) or scale * most < 1e-300:
        return float(values[0]), 1.0
    digits = _DIGITS - math.floor(math.log10(scale * most))
    return round(mean * most, digits), round(scale * most, digits)


def _edges(values: np.ndarray, buckets: int) -> np.ndarray:
    """Where buckets of values end, float64, ascending: values that fill a bucket have one of their own, the others
    share what buckets are left evenly."""
    different, counts = np.unique(values, return_counts=True)
    if different.size <= buckets:
        return different[1:]
    frequent = counts * buckets >= values.size
    rest = np.sort(values[~np.isin(values, different[frequent])])
    left = max(buckets - int(frequent.sum()), 1)
    cuts = rest[np.arange(1, left) * rest.size // left] if rest.size else rest
    at = np.flatnonzero(frequent)
    behind = at[at + 1 < different.size] + 1
    edges = np.unique(np.concatenate((cuts, different[at], different[behind])))
    return edges[edges > different[0]]  # below the first value there is nothing


def _strange(column: NumericConfig, values: np.ndarray) -> list[str]:
    """What a user may not have meant."""
    known = values[np.isfinite(values)]
    if not known.size:
        return [f"column '{column.name}' has no number in the first {values.size:,} examples"]
    if known.size > 1 and (known == known[0]).all():
        return [f"column '{column.name}' is {known[0]:g} in all of the first {values.size:,} examples"]
    if (np.abs(known) > _EXACT).any() and (known == np.floor(known)).all():
        return [
            f"column '{column.name}' has integers beyond 2^53, which 64-bit floats round: ids belong to categorical"
        ]
    return []


def _chosen(before: LogConfig, after: LogConfig) -> str:
    """Which columns got which transform, where that was for the examples to say."""
    columns: dict[str, list[str]] = {}
    for was, now in zip(before.numeric, after.numeric, strict=True):
        if was.transform == "auto":
            columns.setdefault(now.transform, []).append(now.name)
    parts = []
    for transform, names in sorted(columns.items()):
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        parts.append(f"{transform} {', '.join(names[:_LISTED])}{more}")
    return "; ".join(parts)
