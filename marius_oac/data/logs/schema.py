"""What the readers of all formats share: the type of blocks, which columns they read, and of which Arrow types
these may be.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from marius_oac.config.ctr import LogConfig
from marius_oac.errors import InputError

MISSING_TEXTS = ("", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "?", "\\N")
"""The texts that mean a missing number."""
TIME_HINT = "a date or time: make numbers of it, such as hour and weekday, or list the column under data.ignored"
_TIMES = re.compile(r"\b\d{4}[-/.]\d\d?[-/.]\d\d?\b|\b\d\d?[-/.]\d\d?[-/.]\d{2,4}\b|\b\d\d?:\d\d\b")


def is_binary(kind: pa.DataType) -> bool:
    """Whether it is a type of bytes, which are read as texts."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Whether it is a type of strings or bytes."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, is_binary)
    return any(test(kind) for test in tests)


def is_number(kind: pa.DataType) -> bool:
    """Whether it is a type of numbers; booleans and the null type count as such."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    """Whether it is a type of lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_usable(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a feature: one value, or a list of values, in each row."""
    kind = plain(kind)
    kind = plain(kind.value_type) if is_list(kind) else kind
    return is_number(kind) or is_text(kind) or pa.types.is_temporal(kind)


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of a dictionary's values; any other type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def looks_like_a_time(text: str) -> bool:
    """Whether a text contains a date or a time of day."""
    return _TIMES.search(text) is not None


def check_number(field: pa.Field, path: Path) -> None:
    """Raises InputError unless a column holds numbers, or texts that may be some."""
    kind = plain(field.type)
    if not (is_number(kind) or is_text(kind)):
        hint = f" ({TIME_HINT})" if pa.types.is_temporal(field.type) else ""
        raise InputError(f"column '{field.name}' holds {field.type}: numbers are needed{hint}", path)


def check_label(field: pa.Field, path: Path) -> None:
    """Raises InputError unless a column's type can be that of labels."""
    kind = plain(field.type)
    if not (is_number(kind) or is_text(kind)) or is_binary(kind):
        raise InputError(f"column '{field.name}' holds {field.type}: numbers, truth values or texts are needed", path)


MOST_COLUMNS = 10_000

Parsed = Iterator[tuple[np.ndarray, pa.RecordBatch]]
"""Batches in order, each with its rows' numbers in the file, from 0, int64 [n]."""


class RawBlock(Protocol):
    """A block of n consecutive rows of a file that are not parsed yet."""

    def __len__(self) -> int: ...

    def parse(self, rows: np.ndarray) -> Parsed:
        """Parses the rows with these indices, int64 [k] in [0, n), ascending, k >= 1. Several threads may call it.

        Raises:
            InputError: the format refuses a row.
        """
        ...


def check_columns(names: list[str], config: LogConfig, with_labels: bool, path: Path) -> list[str]:
    """The columns to read from a file with columns `names`.

    Raises:
        InputError: two have the same name; a column of the schema is missing; there is a column that neither the schema
            nor `ignored` names.
    """
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{len(names):,} columns, at most {MOST_COLUMNS:,} are possible", path)
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        raise InputError(f"two columns are named '{twice}'", path)
    beside = [config.label.column, *([config.weight.column] if config.weight else [])]
    wanted = beside.copy() if with_labels else []
    wanted += [each.name for each in config.numeric] + [each.name for each in config.keyed()]
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names[:10])}"
            raise InputError(f"there is no column '{name}', which the schema names; {hint}", path)
    known = {*beside, *wanted, *config.ignored}
    unknown = [name for name in names if name and name not in known]  # a column without a name can't be listed
    if unknown:
        raise InputError(f"the schema names no column '{unknown[0]}' (data.ignored lists those to leave out)", path)
    return wanted
