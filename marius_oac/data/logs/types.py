"""The Arrow types that columns of a click log may have."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from marius_oac.errors import InputError

MISSING_TEXTS = ("", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "?", "\\N")
"""The texts that mean a missing number."""
TIME_HINT = "a date or time: make numbers of it, such as hour and weekday, or list the column under data.ignored"
_TIMES = re.compile(r"\b\d{4}[-/.]\d\d?[-/.]\d\d?\b|\b\d\d?[-/.]\d\d?[-/.]\d{2,4}\b|\b\d\d?:\d\d\b")


def is_text(kind: pa.DataType) -> bool:
    """Whether it is a type of strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether it is a type of numbers; booleans and the null type count as such."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    """Whether it is a type of lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of a dictionary's values; any other type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def looks_like_a_time(text: str) -> bool:
    """Whether a text contains a date or a time of day."""
    return _TIMES.search(text) is not None


def check_number(field: pa.Field, path: Path) -> None:
    """Raises InputError unless a column holds numbers."""
    if not is_number(field.type):
        hint = f" ({TIME_HINT})" if pa.types.is_temporal(field.type) else ""
        raise InputError(f"column '{field.name}' holds {field.type}: numbers are needed{hint}", path)


def check_label(field: pa.Field, path: Path) -> None:
    """Raises InputError unless a column's type can be that of labels."""
    kind = plain(field.type)
    if not (is_number(kind) or is_text(kind)):
        raise InputError(f"column '{field.name}' holds {field.type}: numbers, truth values or texts are needed", path)
