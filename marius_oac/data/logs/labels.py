"""The label of a click log: numbers 0 and 1, well-known texts, or the values that the configuration maps to 1, which it
names or which are above a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from marius_oac.config.log_columns import LabelConfig
from marius_oac.data.logs.place import Place

TRUE_TEXTS = frozenset(("1", "true", "t", "yes", "y"))
FALSE_TEXTS = frozenset(("0", "false", "f", "no", "n"))
"""Well-known labels, in lower case."""
_SHOWN = 5  # values that a message lists


def labels_of(column: pa.Array, label: LabelConfig, place: Place) -> np.ndarray:
    """The labels, 0 or 1, float32 [n], of a column of numbers, truth values or texts.

    Raises:
        InputError: a label is missing; is neither 0 nor 1, and the configuration doesn't say which values mean 1; or is
            no number, though the configuration says above which one it means 1.
    """
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    # A dictionary may hold values that no row of the batch has.
    meant = np.array([*(meaning(value, label) for value in values), np.nan], np.float32)
    labels = meant[codes]
    wrong = np.flatnonzero(np.isnan(labels))
    if wrong.size:
        code = codes[wrong[0]]
        raise place.wrong(int(wrong[0]), _refusal(values, codes, None if code == len(values) else values[code], label))
    return labels


def number_of(text: str) -> float | None:
    """The text as a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def text_of(value: object) -> str:
    """A label as a text: 1 of 1.0 and " 1"."""
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    return text.removesuffix(".0") if isinstance(value, float) else text


def meaning(value: object, label: LabelConfig) -> float:
    """0 or 1; NaN: neither."""
    if value is None or str(value).strip() == "" or isinstance(value, float) and math.isnan(value):
        return math.nan
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    number = number_of(text)
    if label.above is not None:
        return math.nan if number is None or math.isnan(number) else float(number > label.above)
    if label.positive is not None:
        positive, negative = (_is_one_of(text, said or ()) for said in (label.positive, label.negative))
        return math.nan if label.negative is not None and not (positive or negative) else float(positive)
    text = text.lower()
    if text in TRUE_TEXTS or number == 1:
        return 1.0
    return 0.0 if text in FALSE_TEXTS or number == 0 else math.nan


def _is_one_of(text: str, said: Sequence[str]) -> bool:
    number = number_of(text)
    texts = [each.strip() for each in said]
    return text in texts or number is not None and number in [number_of(each) for each in texts]


def _refusal(values: list[Any], codes: np.ndarray, found: object, label: LabelConfig) -> str:
    """A message that says what is wrong with a label, and lists the column's values."""
    name = label.column
    if found is None or str(found).strip() == "":
        return f"column '{name}' has no label"
    counts = np.bincount(codes, minlength=len(values) + 1)[: len(values)]
    seen = sorted((each for each, count in zip(values, counts, strict=True) if count), key=str)
    number = number_of(str(found)) if not isinstance(found, bool) else float(found)
    shown = repr(str(found)) if number is None else f"{number:g}"
    if label.above is not None:
        return f"the label in column '{name}' is {shown}; numbers are needed, as data.label.above is given"
    if label.negative is not None:
        known = " or ".join(map(repr, (*label.negative, *(label.positive or ()))))
        said = f"the label in column '{name}' is {shown}, not {known}"
        return f"{said}: data.label.positive and data.label.negative list what means 1 and 0"
    said = f"the label in column '{name}' is {shown}, neither 0 nor 1"
    if len(seen) > 2 * _SHOWN:
        offer = f": say above which number it means 1, as in label: {{column: {name}, above: {shown}}}"
        return f"{said}; the column has {len(seen)} different values and more{'' if number is None else offer}"
    listed = ", ".join(repr(str(each).strip()) for each in seen[:_SHOWN]) + (", ..." if len(seen) > _SHOWN else "")
    rarest = min(seen, key=lambda each: (counts[values.index(each)], str(each)))
    offer = str(rarest).strip()
    example = offer if number_of(offer) is not None else repr(offer)
    return f"{said}; it has values {listed}: say which means 1, as in label: {{column: {name}, positive: {example}}}"


def read_as() -> pa.DataType:
    """The Arrow type of labels parsed from texts: a dictionary, so that each different text is converted once."""
    return pa.dictionary(pa.int32(), pa.string())
