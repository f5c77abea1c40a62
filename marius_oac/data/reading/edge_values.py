"""Tells by the first values of columns which are the ends and relations of edges, and which are weights, times or the
like, which are left out.

An order of columns is certain where it follows from names, or from values: ends share values, or have ranges alike, and
relations are few, or are no ends. All else is read by custom, as head, relation, tail, and said with the reason why it
may be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from marius_oac.types import present

INTEGER = re.compile(r"\s*[+-]?\d+\s*")
FLOAT = re.compile(r"\s*[+-]?(\d+[.,]\d*|[.,]\d+|\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(nan|inf)\s*", re.IGNORECASE)
TIME = re.compile(
    r"\s*(\d{4}[-/]\d\d?[-/]\d\d?([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?\s*(Z|UTC|[+-]\d\d:?\d\d)?)?"
    r"|\d\d?[-/]\d\d?[-/]\d{4})\s*"
)
_DAY = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")
_SECONDS = (8e8, 2.2e9)  # since 1970, of 1995 to 2039
_UNITS = (1, 10**3, 10**6, 10**9)
_FEWER = 4  # times as many values have ends of edges, at least, as the relations that are told by that
_SOME = 20  # rows from which on negative numbers are no names
_MANY = 100  # rows from which on values tell that are all different
_KINDS = frozenset(("directed", "undirected"))  # which Gephi writes


class Values:
    """The values of a column in the first rows, as texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.rows, self.example = len(texts), texts[0] if texts else ""
        self.different = {text.strip() for text in texts}
        self._texts = texts

    @property
    def each_differs(self) -> bool:
        """Whether no value is there twice, in rows enough to conclude something from that."""
        return self.rows >= _MANY and len(self.different) == self.rows

    @cached_property
    def integers(self) -> np.ndarray | None:
        """The different values, float64, ascending, if all are whole numbers; only to be compared."""
        if not self.different or not all(map(INTEGER.fullmatch, self.different)):
            return None
        return np.array(sorted(map(float, self.different)))

    @cached_property
    def floats(self) -> bool:
        """Whether all are numbers, and some are written with a point or an exponent."""
        return self.integers is None and bool(self.different) and all(map(FLOAT.fullmatch, self.different))

    @cached_property
    def counts_rows(self) -> bool:
        """Whether they are whole numbers, each one more than that before."""
        if self.integers is None or not self.each_differs or abs(self.integers).max() > 2**53:
            return False
        numbers = [int(text) for text in self._texts]
        return numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    @cached_property
    def is_no_name(self) -> str:
        """What they are, if they are no names of nodes or relations; else nothing."""
        if self.integers is not None:
            low, high = self.integers[0], self.integers[-1]
            if any(_SECONDS[0] * unit < low and high < _SECONDS[1] * unit for unit in _UNITS):
                return "times"
            if len(self.different) > 1 and all(map(_DAY.fullmatch, self.different)):
                return "times"
            return "weights" if low < 0 and self.rows >= _SOME else ""
        if self.floats:
            numbers = [float(text.replace(",", ".")) for text in self.different]
            return "times" if all(_SECONDS[0] < number < _SECONDS[1] for number in numbers) else "weights"
        if self.different and all(map(TIME.fullmatch, self.different)):
            return "times"
        if self.different == {""}:
            return "nothing"
        if all(text.startswith("{") and text.endswith("}") for text in self.different):
            return "attributes"
        return "the kind of graph" if {text.lower() for text in self.different} <= _KINDS else ""


@dataclass(frozen=True)
class Choice:
    """Columns of edges.

    Attributes:
        chosen: their numbers: head, relation (if there is one), tail.
        left: what the others are, by number.
        doubt: why the choice may be wrong; empty: it is certain.
    """

    chosen: list[int]
    left: dict[int, str]
    doubt: str = ""


def choose(columns: Sequence[Values], others: Collection[int] = ()) -> Choice | None:
    """Chooses among columns without telling names; None if more than three may be meant, or fewer than two. `others`
    are not meant by their names."""
    left = {number: column.is_no_name for number, column in enumerate(columns) if number in others or column.is_no_name}
    if len(columns) - len(left) < 2:  # names that look like times
        left = {number: what for number, what in left.items() if what != "times"}
    if len(columns) - len(left) < 2:
        left = {}
    rest = [number for number in range(len(columns)) if number not in left]
    if len(rest) > 2 and columns[rest[0]].counts_rows and not _follow(*(columns[number] for number in rest[:3])):
        left[rest.pop(0)] = "the numbers of rows"
    if len(rest) == 2:
        odd = [number for number in rest if columns[number].floats]
        doubt = f"column {odd[0]} holds weights, or ids written as fractions" if len(odd) == 1 else ""
        return Choice(rest, left, doubt)
    return _of_three(rest, columns, left) if len(rest) == 3 else None


def _of_three(rest: list[int], columns: Sequence[Values], left: dict[int, str]) -> Choice:
    values = [columns[number] for number in rest]
    if _follow(*values):
        return Choice(rest, left)
    differing = [number for number in rest if columns[number].each_differs and columns[number].integers is not None]
    if len(differing) == 1:
        number = differing[0]
        others = [other for other in rest if other != number]
        return Choice(others, left | {number: "another value in each row, as no end of an edge does"})
    counts = [len(each.different) for each in values]
    least = min(range(3), key=lambda place: (counts[place], place != 1))
    first, last = (rest[place] for place in range(3) if place != least)
    if least != 1 and counts[least] * _FEWER <= sorted(counts)[1]:
        why = f"column {rest[least]} is taken for the relation, as it has the fewest values, {counts[least]:,}"
        return Choice([first, rest[least], last], left, why)
    shown = ", ".join(f"{count:,}" for count in counts)
    return Choice(rest, left, f"read as head, relation, tail, which have {shown} different values")


def _follow(head: Values, relation: Values, tail: Values) -> bool:
    """Whether three columns are surely head, relation and tail."""
    few = len(relation.different) * _FEWER <= min(len(head.different), len(tail.different))
    if head.integers is None and tail.integers is None:
        ends = head.different | tail.different
        inside = len(relation.different & ends)
        if relation.integers is not None or inside * 20 > len(relation.different):
            return few and relation.integers is not None
        shared = not head.different.isdisjoint(tail.different)
        return few or (shared or head.rows < _MANY) and len(relation.different) <= len(ends)
    if head.integers is None or tail.integers is None:
        return False
    if relation.integers is None:
        return not relation.is_no_name
    if len(relation.different) == 1:
        return few
    return few and _spread(head.integers, tail.integers) and (_same_range(head, tail) or _share(head, tail))


def _share(one: Values, other: Values) -> bool:
    """Whether half of the different values of one column are in the other."""
    return 2 * len(one.different & other.different) >= min(len(one.different), len(other.different))


def _same_range(one: Values, other: Values) -> bool:
    low, high = sorted((present(one.integers)[-1], present(other.integers)[-1]))
    return high <= 1.1 * low


def _spread(*columns: np.ndarray) -> bool:
    """Whether different numbers are spread over their range as ids are, and counts and amounts are not."""
    return all(4 * np.median(each) >= each[-1] for each in columns)
