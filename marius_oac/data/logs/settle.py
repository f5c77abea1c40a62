"""Decides kinds of keys, transforms of numeric columns with their parameters and medians, and the values of the label
from the first examples of a log.

The examples are the first 65,536 of the first file, so that the result is the same whether a run gets all days at once
or one after another. The result is written to the configuration, and so to the run's folder, to every node and to every
later evaluation. It is decided only once.

`auto` depends on the examples' finite values x, clipped to `clip`, and their skewness g = m3 / m2 ** 1.5:

    no other feature has rows      quantiles, since a model needs rows (unless all values are equal)
    at most two different values   standardize
    |g(x)| <= 1.5                  standardize
    |g(ln(1 + x))| <= 1.5          log1p, with -ln(1 - x) for negative x
    else                           quantiles: most values are equal, or a logarithm leaves long tails

Keys are integers where the file has numbers, and fingerprints where it has texts, or where features that share their
rows differ in that. Files of another type are converted to what was decided.

Sums are rounded once (`math.fsum`), so that they have the same bits on all machines. Center and scale are then rounded
to a millionth of the scale. This makes them readable, and hides differences in the last bit between C libraries'
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import LabelConfig, NumericConfig
from marius_oac.data.logs.columns import convert, kind_of
from marius_oac.data.logs.files import BlockReader, LogFile
from marius_oac.data.logs.labels import labels_of, meaning, text_of
from marius_oac.data.logs.numbers import floats, limited, signed_log1p
from marius_oac.data.logs.place import place_of
from marius_oac.data.logs.schema import is_list
from marius_oac.types import present

EXAMPLES = 1 << 16
BUCKETS = 32
SKEWED = 1.5
_DIGITS = 6  # digits of a scale after the first
_EXACT = 2.0**53  # integers up to this are exact as 64-bit floats
_CONSTANT = 1e-12  # relative to the center: a smaller scale is rounding error
_LISTED = 8  # columns that a note names for each transform


def settle(config: LogConfig, files: Sequence[LogFile]) -> tuple[LogConfig, list[str]]:
    """The configuration completed by what the first examples decide, and notes for the user.

    Raises:
        InputError: the examples have no labels, or numbers are missing and the configuration refuses that.
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
    """As `settle`, by parsed examples of a file: pairs of their numbers in the file, from 0, int64 [n], and columns."""
    for rows, batch in parsed:
        labels_of(batch.column(config.label.column), config.label, place_of(path, rows, config))
    config = _with_kinds(config, parsed[0][1].schema) if parsed else config
    config = config.model_copy(update={"label": _label(config.label, [batch for _, batch in parsed])})
    keyed = any(config.keyed())
    columns, notes = [], []
    for each in config.numeric:
        read = [
            floats(batch.column(each.name), each, pa.float64(), config, place_of(path, rows, config))
            for rows, batch in parsed
        ]
        values = np.concatenate(read)
        columns.append(_settled(each, values, config, keyed))
        notes += _strange(columns[-1], values)
    found = config.model_copy(update={"numeric": tuple(columns)})
    positive = 0
    for rows, batch in parsed:
        positive += int(np.count_nonzero(present(convert(batch, found, True, path, rows).labels)))
    if not positive and config.label.positive:
        meant = ", ".join(config.label.positive)
        notes.append(f"no label of the first examples of {path.name} means 1, which {meant} does (data.label.positive)")
    if not positive and config.label.above is not None:
        notes.append(
            f"no label of the first examples of {path.name} is above {config.label.above:g} (data.label.above)"
        )
    return found, notes


def _with_kinds(config: LogConfig, schema: pa.Schema) -> LogConfig:
    """The configuration with the kind of each feature's keys, by the types of the columns."""
    kinds: dict[str, str] = {}
    for each in config.keyed():
        kind = schema.field(each.name).type
        found, vocabulary = kind_of(kind.value_type if is_list(kind) else kind, each), each.vocabulary or each.name
        found = "string" if found == "auto" else found
        kinds[vocabulary] = found if kinds.setdefault(vocabulary, found) == found else "string"
    changed = {
        key: tuple(
            each.model_copy(update={"kind": kinds[each.vocabulary or each.name]}) if each.kind == "auto" else each
            for each in getattr(config, key)
        )
        for key in ("categorical", "multi_valued", "sequences")
    }
    return config.model_copy(update=changed)


def _label(label: LabelConfig, batches: Sequence[pa.RecordBatch]) -> LabelConfig:
    """The label, with the value that means 0 if the examples have only one besides those that mean 1."""
    if label.positive is None or label.negative is not None:
        return label
    values = {value for batch in batches for value in batch.column(label.column).unique().to_pylist()}
    others = {text_of(value) for value in values if not meaning(value, label)}
    return label.model_copy(update={"negative": tuple(others)}) if len(others) == 1 else label


def _settled(column: NumericConfig, values: np.ndarray, config: LogConfig, keyed: bool) -> NumericConfig:
    """The column with transform, parameters and median decided by its values, float64 [n]."""
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
    """The rule of `auto`, see the module's docstring, for values float64 [n]."""
    different = np.unique(values).size
    if not different:
        return "log1p"  # nothing is known about its values, but their logarithms are small
    if not keyed:
        return "quantiles" if different > 1 else "standardize"
    if different <= 2 or abs(_skewness(values)) <= SKEWED:
        return "standardize"
    return "log1p" if abs(_skewness(signed_log1p(values))) <= SKEWED else "quantiles"


def _scaled(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Values float64 [n] divided by the largest absolute value, so that no square overflows; and that value."""
    most = float(np.abs(values).max(initial=0.0))
    return (values / most if most else values), most


def _skewness(values: np.ndarray) -> float:
    """The skewness of values, float64 [n]; 0 if all are equal."""
    scaled, _ = _scaled(values)
    away = scaled - math.fsum(scaled) / scaled.size
    second = math.fsum(away**2) / away.size
    return math.fsum(away**3) / away.size / second**1.5 if second > _CONSTANT**2 else 0.0


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of values float64 [n], rounded; (the value, 1) if all are equal, (0, 1) if none."""
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
    """The edges between buckets, float64 [at most buckets - 1], ascending, for values float64 [n]. A value frequent
    enough to fill a bucket gets its own; the other values share the remaining buckets evenly."""
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
    return edges[edges > different[0]]  # a bucket below the first value would be empty


def _strange(column: NumericConfig, values: np.ndarray) -> list[str]:
    """Notes on what a user may not have intended; values are float64 [n]."""
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
    """A text that lists the transforms that `auto` chose, with their columns."""
    columns: dict[str, list[str]] = {}
    for was, now in zip(before.numeric, after.numeric, strict=True):
        if was.transform == "auto":
            columns.setdefault(now.transform, []).append(now.name)
    parts = []
    for transform, names in sorted(columns.items()):
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        parts.append(f"{transform} {', '.join(names[:_LISTED])}{more}")
    return "; ".join(parts)
