"""What the values of a column are: counts of the different ones, and of those that are written as numbers.

Guarantees: nothing is compared as a float. Two integers of 64 bits, or two texts, are equal only if all digits are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.log_columns import NumericConfig
from marius_oac.data.logs.numbers import written_numbers
from marius_oac.data.logs.schema import MISSING_TEXTS, looks_like_a_time

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITE = r"^[+-]?(inf|infinity|Inf|Infinity)$"
_WHOLE = r"^[+-]?[0-9]+(\.0*)?$"
UNITS = ("US$", "$", "€", "£", "¥", "₹", "USD", "EUR", "GBP", "%")
_SHOWN = 5  # examples in a message
_LOOKED_AT = 200  # texts in which times are looked for


@dataclass(frozen=True)
class Evidence:
    """What the values of a column are: numbers, truth values, or texts without the blanks around them.

    Attributes:
        rows: the number of rows.
        missing: the number of rows without a value.
        texts: the different values as texts, 69 for 69.0, in the order in which they first appear, [n].
        counts: how many rows have each, int64 [n].
        merged: a text that is the same whole number as another one, such as 69.0 beside 69; None: there is none.
    """

    rows: int
    missing: int
    texts: pa.StringArray
    counts: np.ndarray
    merged: str | None = None

    @classmethod
    def of(cls, column: pa.Array, missing: Sequence[str] = ()) -> Evidence:
        """That of a column of texts, numbers or truth values. `missing`: see `data.missing`."""
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        raw = pc.value_counts(_as_texts(column))
        texts, counts = pc.replace_substring_regex(raw.field(0), r"^([+-]?[0-9]+)\.0+$", r"\1"), raw.field(1).to_numpy()
        encoded, merged = texts.dictionary_encode(null_encoding="encode"), None
        if len(encoded.dictionary) < len(texts):
            places = encoded.indices.to_numpy()
            merged = raw.field(0)[
                int(np.flatnonzero(np.diff(np.maximum.accumulate(places), prepend=-1) == 0)[0])
            ].as_py()
            texts, counts = encoded.dictionary, np.bincount(places, counts).astype(np.int64)
        gone = pc.fill_null(pc.is_in(texts, pa.array((*MISSING_TEXTS, *missing))), True)
        gone = pc.or_(gone, pc.fill_null(pc.match_substring_regex(texts, _INFINITE), True))
        left = ~gone.to_numpy(zero_copy_only=False)
        return cls(len(column), int(counts[~left].sum()), texts.filter(pa.array(left)), counts[left], merged)

    @property
    def known(self) -> int:
        """The number of rows with a value."""
        return self.rows - self.missing

    @property
    def different(self) -> int:
        """n."""
        return len(self.texts)

    @cached_property
    def numbers(self) -> np.ndarray:
        """Which of the texts are numbers, bool [n]."""
        return self._match(_NUMBER)

    def some(self, which: np.ndarray) -> Evidence:
        """That of these values, bool [n], alone."""
        counts = self.counts[which]
        missing = self.rows - int(counts.sum())
        return Evidence(self.rows, missing, self.texts.filter(pa.array(which)), counts, self.merged)

    def rows_of(self, which: np.ndarray) -> int:
        """The number of rows with these values, bool [n]."""
        return int(self.counts[which].sum())

    @cached_property
    def values(self) -> np.ndarray:
        """The numbers, float64 [n]; all texts must be numbers."""
        return pc.cast(self.texts, pa.float64()).to_numpy(zero_copy_only=False)

    @cached_property
    def whole(self) -> bool:
        """Whether all are whole numbers, such as 69 and 69.0."""
        return bool(self._match(_WHOLE).all())

    @property
    def leading_zeros(self) -> bool:
        """Whether a number has leading zeros, as codes have."""
        return bool(self._match(r"^[+-]?0[0-9]").any())

    @property
    def one_width(self) -> bool:
        """Whether all have equally many letters and digits, at least six, and nothing else, as hashes have."""
        lengths = pc.min_max(pc.utf8_length(self.texts)).as_py()
        return lengths["min"] == lengths["max"] >= 6 and bool(self._match("^[0-9A-Za-z]+$").all())

    @property
    def twice(self) -> str | None:
        """A number with leading zeros that is there without them, too; None: there is none."""
        padded = self.texts.filter(pa.array(self._match(r"^0+[0-9]+$")))
        there = pc.is_in(pc.replace_substring_regex(padded, "^0+", ""), self.texts).to_numpy(zero_copy_only=False)
        return padded[int(np.argmax(there))].as_py() if there.any() else None

    @property
    def median(self) -> float:
        """The median over the rows; all texts must be numbers."""
        order = np.argsort(self.values)
        return float(self.values[order][np.searchsorted(np.cumsum(self.counts[order]), self.known / 2)])

    @property
    def digits(self) -> np.ndarray:
        """Which of the texts have digits, bool [n]."""
        return self._match("[0-9]")

    @property
    def consecutive(self) -> bool:
        """Whether they count the rows: each integer once, in order, without gaps."""
        if self.different != self.known or not self.whole:
            return False
        numbers = [int(text.partition(".")[0]) for text in self.texts.to_pylist()]
        return all(after - before == 1 for before, after in pairwise(numbers))

    @property
    def times(self) -> bool:
        """Whether nearly all texts are dates or times of day."""
        some = self.texts.slice(0, _LOOKED_AT).to_pylist()
        return bool(some) and sum(map(looks_like_a_time, some)) * 10 >= 9 * len(some)

    @property
    def written(self) -> NumericConfig | None:
        """The way in which all of the texts are numbers, if there is one that isn't the usual one."""
        others = self.texts.filter(pa.array(~self.numbers))
        some = others.to_pylist()
        if not some:
            return None
        word = re.search(r"[0-9]\s*([a-zA-Z]+)$", some[0])
        known = (each for each in UNITS if some[0].lstrip("+-").startswith(each) or some[0].endswith(each))
        unit = next(known, word[1] if word else None)
        marks = {mark for text in some for mark in set(re.findall(r"(?<=\d)[.,' \u00a0\u202f](?=\d)", text))}
        ways = [(".", mark) for mark in sorted(marks - {"."})]
        ways += [(",", mark) for mark in (None, *sorted(marks - {","}))] if "," in marks else []
        for decimal, mark in [(".", None)] * bool(unit) + ways:
            way = NumericConfig(name="x", unit=unit, thousands=mark, decimal=decimal)
            if not np.isnan(written_numbers(self.texts, way)).any():
                return way
        return None

    def shown(self, which: np.ndarray | None = None) -> str:
        """The most frequent of these values, for a message."""
        places = np.arange(self.different) if which is None else np.flatnonzero(which)
        first = places[np.argsort(-self.counts[places], kind="stable")][:_SHOWN]
        listed = ", ".join(repr(self.texts[int(each)].as_py()) for each in first)
        return listed + ", ..." * (len(places) > _SHOWN)

    def _match(self, pattern: str) -> np.ndarray:
        return pc.match_substring_regex(self.texts, pattern).to_numpy(zero_copy_only=False).astype(bool)


def _as_texts(column: pa.Array) -> pa.StringArray:
    """The values as texts without blanks around them; bytes that are no text in hexadecimal."""
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([None if each is None else each.hex() for each in column.to_pylist()], pa.string())
    return pc.utf8_trim_whitespace(texts)
