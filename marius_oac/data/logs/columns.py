"""Converts columns of a click log to NumPy: labels (`logs.labels`), numbers (`logs.numbers`), and keys of features.

A key is an int64. Of kinds integer and hex it is the number that a value is or denotes, of kinds string and verbatim
the 64-bit fingerprint of its text. An independent 32-bit fingerprint, the check, lets an index distinguish two texts
with the same key (see `logs.fingerprints`). An empty value or null has the key MISSING. A column of another type than
the feature's kind is converted: 69, 69.0 and " 69" are the same integer and, but for kind verbatim, the same text.

Conversion works on Arrow's buffers, without a Python object per value and without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import LIST, BagConfig, CategoricalConfig, SequenceConfig
from marius_oac.data.logs.fingerprints import MISSING, fingerprints, hexadecimals, integers
from marius_oac.data.logs.labels import labels_of
from marius_oac.data.logs.numbers import numbers_of, weights_of
from marius_oac.data.logs.place import Place, place_of
from marius_oac.data.logs.schema import TIME_HINT, is_number, is_text, plain
from marius_oac.data.logs.splitting import cut_bags, split_lists, split_texts, trimmed
from marius_oac.data.reading.parquet_pages import decoded
from marius_oac.errors import InputError
from marius_oac.types import present

__all__ = ["MISSING", "Bag", "LogBlock", "check_key", "convert", "kind_of", "texts_of"]

_NO_ROWS = np.zeros(0, np.int64)
_EXACT = 2**53
"""Up to this number a float64 stands for one integer."""


@dataclass(frozen=True)
class Bag:
    """A feature with several values per example.

    Attributes:
        keys: int64 [v].
        checks: uint32 [v]; None: keys are no fingerprints.
        offsets: int64 [n + 1]: example i has the values [offsets[i], offsets[i + 1]).
    """

    keys: np.ndarray
    checks: np.ndarray | None
    offsets: np.ndarray

    def take(self, examples: np.ndarray) -> Bag:
        """A copy of the examples with these indices, int64 [k], in their order."""
        starts, lengths = self.offsets[examples], self.offsets[examples + 1] - self.offsets[examples]
        offsets = np.zeros(len(examples) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Bag(self.keys[values], None if self.checks is None else self.checks[values], offsets)

    def slice(self, first: int, end: int) -> Bag:
        """The examples [first, end). Values are not copied."""
        low, high = self.offsets[first], self.offsets[end]
        checks = None if self.checks is None else self.checks[low:high]
        return Bag(self.keys[low:high], checks, self.offsets[first : end + 1] - low)


@dataclass(frozen=True)
class LogBlock:
    """A block of n examples of a log.

    Attributes:
        labels: float32 [n], 0 or 1; None: they were not read.
        numbers: float32 [n, N], finite: the numeric columns in the order of the config except those with buckets, then
            the indicators.
        keys: int64 [n] of each single-valued feature.
        checks: uint32 [n] of each single-valued feature; None: keys are no fingerprints.
        bags: of each multi-valued feature and sequence, at most `max_values` values per example.
        cut: how many values were cut off by that limit in the whole block that was read.
        weights: float32 [n], finite and not negative; None: there is no such column, or labels were not read.
    """

    labels: np.ndarray | None
    numbers: np.ndarray
    keys: dict[str, np.ndarray] = field(default_factory=dict)
    checks: dict[str, np.ndarray | None] = field(default_factory=dict)
    bags: dict[str, Bag] = field(default_factory=dict)
    cut: int = 0
    weights: np.ndarray | None = None

    @property
    def size(self) -> int:
        """n."""
        return len(self.numbers)

    def take(self, examples: np.ndarray) -> LogBlock:
        """A copy of the examples with these indices, int64 [k], in their order."""
        return self._chosen(examples, lambda bag: bag.take(examples))

    def slice(self, first: int, end: int) -> LogBlock:
        """The examples [first, end), 0 <= first <= end <= n. Only offsets are copied."""
        return self._chosen(np.s_[first:end], lambda bag: bag.slice(first, end))

    def _chosen(self, which: Any, chosen: Callable[[Bag], Bag]) -> LogBlock:
        return LogBlock(
            None if self.labels is None else self.labels[which],
            self.numbers[which],
            {name: keys[which] for name, keys in self.keys.items()},
            {name: None if checks is None else checks[which] for name, checks in self.checks.items()},
            {name: chosen(bag) for name, bag in self.bags.items()},
            self.cut,
            None if self.weights is None else self.weights[which],
        )

    @staticmethod
    def join(parts: Sequence[LogBlock]) -> LogBlock:
        """Concatenates blocks, at least one, with the same columns."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        return LogBlock(
            _join([part.labels for part in parts]),
            np.concatenate([part.numbers for part in parts]),
            {name: np.concatenate([part.keys[name] for part in parts]) for name in first.keys},
            {name: _join([part.checks[name] for part in parts]) for name in first.checks},
            {name: _join_bags([part.bags[name] for part in parts]) for name in first.bags},
            sum(part.cut for part in parts),
            _join([part.weights for part in parts]),
        )


def _join(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    return None if parts[0] is None else np.concatenate([present(part) for part in parts])


def _join_bags(parts: Sequence[Bag]) -> Bag:
    ends = np.cumsum([len(part.keys) for part in parts])
    shifted = [part.offsets[1:] + end - len(part.keys) for part, end in zip(parts, ends, strict=True)]
    return Bag(
        np.concatenate([part.keys for part in parts]),
        _join([part.checks for part in parts]),
        np.concatenate([parts[0].offsets[:1], *shifted]),
    )


def convert(batch: pa.RecordBatch, config: LogConfig, with_labels: bool, path: Path, rows: np.ndarray) -> LogBlock:
    """Converts a batch of Arrow columns, named as in the config, to a block.

    Args:
        path, rows: the file, and each row's number in it, from 0, int64 [n], for messages.

    Raises:
        InputError: as `labels_of`, `weights_of` and `numbers_of`; a value of an integer or hex feature is no such
            number, or is -2**63, which is reserved for MISSING.
    """
    place = place_of(path, rows, config)
    label = config.label
    labels = labels_of(batch.column(label.column), label, place) if with_labels else None
    weights = None if labels is None or config.weight is None else weights_of(batch, labels, config, place)
    numbers, buckets = numbers_of(batch, config, place)
    keys: dict[str, np.ndarray] = {}
    checks: dict[str, np.ndarray | None] = {}
    for each in config.categorical:
        keys[each.name], checks[each.name] = _keys(batch.column(each.name), each, place)
    bags, cut = {}, 0
    several: tuple[BagConfig | SequenceConfig, ...] = (*config.multi_valued, *config.sequences)
    for feature in several:
        bags[feature.name], dropped = _bag(batch.column(feature.name), feature, place)
        cut += dropped
    for name, numbered in buckets.items():
        keys[name], checks[name] = numbered, None
    return LogBlock(labels, numbers, keys, checks, bags, cut, weights)


def kind_of(kind: pa.DataType, feature: CategoricalConfig) -> str:
    """How the keys of a column of this Arrow type are made: the feature's kind; of kind auto, what suits the type; auto
    if it has only nulls."""
    if feature.kind != "auto" or pa.types.is_null(plain(kind)):
        return feature.kind
    return "string" if is_text(plain(kind)) else "integer"


def check_key(kind: pa.DataType, feature: CategoricalConfig) -> None:
    """Raises InputError if no value of a column of this Arrow type could be a key of the feature."""
    kind = plain(kind)
    if not (is_number(kind) or is_text(kind)):
        hint = f" ({TIME_HINT})" if pa.types.is_temporal(kind) else ""
        raise InputError(f"column '{feature.name}' holds {kind}: integers or texts are needed{hint}")
    if feature.kind == "hex" and not (is_text(kind) or pa.types.is_null(kind)):
        raise InputError(f"column '{feature.name}' holds {kind}: its kind, hex, needs texts")


def _keys(column: pa.Array, feature: CategoricalConfig, place: Place) -> tuple[np.ndarray, np.ndarray | None]:
    """The keys, int64 [n], and checks, uint32 [n] or None, of a column's values."""
    column = decoded(column, place.path)
    kind = kind_of(column.type, feature)
    if pa.types.is_null(column.type):
        return np.full(len(column), MISSING), None
    if is_text(column.type):
        return _text_keys(*_texts(column), kind, feature.name, place, None)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    if kind == "integer":
        return _integer_keys(_integers(column, feature.name, place), feature.name, place), None
    return _text_keys(*_texts(column.cast(pa.string())), kind, feature.name, place, None)


def texts_of(column: pa.Array, feature: CategoricalConfig, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The texts whose fingerprints are the keys of a feature of kind string or verbatim: their bytes, uint8, and where
    each begins and ends, int64 [v] each. Those of a bag or sequence also beyond `max_values`."""
    column, separator = decoded(column, path), getattr(feature, "separator", None)
    if not (is_text(column.type) or is_number(column.type)):  # a list
        column, separator = decoded(pc.list_flatten(column), path), None
    if pa.types.is_null(column.type):
        return np.zeros(0, np.uint8), _NO_ROWS, _NO_ROWS
    if separator is not None:
        return _trimmed(*_split(column, separator)[:3], feature)
    column = column.cast(pa.int64()) if pa.types.is_boolean(column.type) else column
    return _trimmed(*_texts(column if is_text(column.type) else column.cast(pa.string())), feature)


def _trimmed(
    text: np.ndarray, starts: np.ndarray, ends: np.ndarray, feature: CategoricalConfig
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (text, starts, ends) if feature.kind == "verbatim" else (text, *trimmed(text, starts, ends))


def _integers(column: pa.Array, name: str, place: Place) -> pa.Array:
    """A column of numbers as integers. Raises InputError if one is not whole, or so large that it may be rounded."""
    if pa.types.is_integer(column.type):
        return column
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((numbers != np.trunc(numbers)) | (np.abs(numbers) > _EXACT))
    else:
        whole = pc.equal(pc.trunc(column), column).fill_null(True).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(~whole)
    if wrong.size:
        number, row = column[int(wrong[0])].as_py(), int(wrong[0])
        why = "beyond 2^53, where doubles round ids" if float(number).is_integer() else "not a whole number"
        raise place.wrong(row, f"column '{name}' holds {number}, {why}; kind: string takes numbers as texts")
    return column.cast(pa.int64())


def _integer_keys(column: pa.Array, name: str, place: Place) -> np.ndarray:
    # Unsigned 64-bit keys, hashes mostly, keep their bits.
    column = column.view(pa.int64()) if pa.types.is_uint64(column.type) else column.cast(pa.int64())
    nulls = column.null_count
    # Of Arrow's memory, without a copy: a new array of each column would cost its page faults.
    keys: np.ndarray = (column.fill_null(MISSING) if nulls else column).to_numpy()
    missing = keys == MISSING
    if np.count_nonzero(missing) != nulls:
        row = int(np.argmax(missing & column.is_valid().to_numpy(zero_copy_only=False)))
        raise place.wrong(row, f"column '{name}' holds {MISSING}, which stands for missing values")
    return keys


def _texts(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The texts of a column: their bytes, uint8, and where each begins and ends, int64 [n] each. Null is empty."""
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if pa.types.is_binary_view(column.type) or pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    width = np.int64 if wide else np.int32
    places = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    starts, ends = places[:-1], places[1:]
    if column.null_count:
        ends = np.where(column.is_valid().to_numpy(zero_copy_only=False), ends, starts)
    text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return text, starts, ends


def _text_keys(
    text: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    kind: str,
    name: str,
    place: Place,
    offsets: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The keys, int64 [v], and checks, uint32 [v] or None, of texts. `offsets` are those of bags, None if each text is
    a row; they give the row of a wrong value."""
    if kind == "verbatim":
        return fingerprints(text, starts, ends)
    starts, ends = trimmed(text, starts, ends)
    if kind == "string":
        return fingerprints(text, starts, ends)
    keys, wrong = (integers if kind == "integer" else hexadecimals)(text, starts, ends)
    if wrong >= 0:
        row = wrong if offsets is None else int(np.searchsorted(offsets, wrong, side="right")) - 1
        found = text[starts[wrong] : ends[wrong]].tobytes().decode("utf-8", "replace")
        needed = "an integer" if kind == "integer" else "a hexadecimal number"
        raise place.wrong(row, f"column '{name}' holds {found!r}, not {needed} of 64 bits other than -2**63")
    return keys, None


def _bag(column: pa.Array, feature: BagConfig | SequenceConfig, place: Place) -> tuple[Bag, int]:
    """The values of each row of a column, and how many were cut off."""
    column = decoded(column, place.path)
    if pa.types.is_null(column.type):
        return Bag(_NO_ROWS, None, np.zeros(len(column) + 1, np.int64)), 0
    if is_text(column.type):
        text, starts, ends, offsets = _split(column, feature.separator)
        kind = kind_of(column.type, feature)
        keys, checks = _text_keys(text, starts, ends, kind, feature.name, place, offsets)
    else:
        keys, checks, offsets = _list_keys(column, feature, place)
    kept, offsets, cut = cut_bags(offsets, feature.max_values, isinstance(feature, SequenceConfig))
    if cut:
        keys, checks = keys[kept], None if checks is None else checks[kept]
    return Bag(keys, checks, offsets), cut


def _split(column: pa.Array, separator: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The texts of each row of a column, as of `_texts`, and their offsets, int64 [n + 1]."""
    texts = _texts(column)
    return split_lists(*texts) if separator == LIST else split_texts(*texts, separator.encode())


def _list_keys(
    column: pa.Array, feature: CategoricalConfig, place: Place
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """The keys, checks and offsets of a column of lists. Null is an empty list."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    keys, checks = _keys(pc.list_flatten(column), feature, replace(place, rows=np.repeat(place.rows, lengths)))
    return keys, checks, offsets
