"""Guesses the label of a click log from its first rows, and whether a file is a log or the edges of a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.data.logs.guess import is_named, words
from marius_oac.data.logs.labels import FALSE_TEXTS, TRUE_TEXTS, number_of, text_of
from marius_oac.data.logs.sample import LogSample
from marius_oac.data.logs.schema import is_list
from marius_oac.data.reading.edge_names import roles
from marius_oac.data.reading.edge_values import Values, choose
from marius_oac.errors import InputError

_MOST_RATINGS = 20  # different values
# fmt: off
_CLICKS = frozenset((
    "label", "click", "clicked", "clicks", "target", "y", "outcome", "response", "converted", "conversion",
))
_DEEDS = frozenset((
    "clk", "buy", "bought", "purchase", "purchased", "install", "installed", "like", "liked", "churn", "churned",
    "default", "survived", "attributed", "returned", "recommended", "revenue",
))
"""What else a label may be named after, in a file without one of those names."""
# fmt: on
_RATINGS = frozenset(("rating", "ratings", "stars", "score"))


@dataclass(frozen=True)
class Label:
    """The column of labels.

    Attributes:
        name: of the column.
        positive: the values that mean 1; empty if the reader knows them.
        negative: the value that means 0, if there are two.
        share: the fraction of the rows with label 1.
        why: the reason for `positive`, in a few words.
    """

    name: str
    positive: tuple[str, ...]
    share: float
    why: str
    negative: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """What a user is told of a guess that may be wrong; empty: it is certain."""
        if not self.why and (not self.positive or set((*self.positive, *self.negative)) == {"-1", "1"}):
            return ""
        values = ", ".join(map(repr, self.positive)) or "the usual values"
        about = f"; {self.why}" if self.why else ""
        return (
            f"label: {self.name}, of which {values} mean 1 ({self.share:.1%} of the rows){about} (data.label.positive)"
        )


def guess_label(sample: LogSample, asked: str | None = None, any_values: bool = False) -> Label:
    """Guesses the column of labels, or describes the one that is `asked` for.

    With `any_values` that column may hold values of which it can't be guessed which mean 1: none does in the result.

    Raises:
        InputError: there is none, or several are possible; lists them.
    """
    if asked is not None:
        return _label(sample, _asked(sample, asked), any_values)
    two = [name for name in sample.names if _is_binary(sample.columns[name])]
    clicks = [name for name in two if is_named(name, _CLICKS)]
    deeds = [name for name in two if _DEEDS & {*words(name)}] or [name for name in two if words(name)[:1] == ["is"]]
    rated = [name for name in sample.names if is_named(name, _RATINGS) and _is_rating(sample.columns[name])]
    for found in (clicks, [] if clicks else deeds, [] if clicks or deeds else rated, two):
        if len(found) == 1:
            # Beside others that may be meant, has_bought may be a feature; is_mobile always may.
            usual = [name for name in two if not _label(sample, name).positive]
            is_deed = usual == found and is_named(found[0], _DEEDS)
            return _guessed(sample, found[0], sure=found is clicks or found is rated or is_deed)
    ends = [name for name in (sample.names[0], sample.names[-1]) if name in two]
    if len(ends) == 1 and not (clicks or deeds):
        return _guessed(sample, ends[0], sure=False)
    of = f"it may be one of {', '.join(map(repr, two[:10]))}" if two else "no column has two values"
    raise InputError(f"which column says what was clicked? {of}: name it with --label COLUMN", sample.path)


def _guessed(sample: LogSample, name: str, sure: bool) -> Label:
    found = _label(sample, name)
    return found if sure or found.why else replace(found, why="it has two values (--label names another)")


def _asked(sample: LogSample, name: str) -> str:
    if name in sample.columns:
        return name
    if not sample.header and name.isdecimal() and int(name) < len(sample.names):
        return sample.names[int(name)]
    raise InputError(f"there is no column {name!r}; there are {', '.join(sample.names[:10])}", "--label")


def _texts_of(column: pa.Array) -> tuple[list[str], np.ndarray]:
    """The different values of a column as texts, sorted (numbers by value), and how many rows have each, int64 [n]."""
    if is_list(column.type) or pa.types.is_null(column.type):
        return [], np.zeros(0, np.int64)
    counts = pc.value_counts(column.dictionary_decode() if pa.types.is_dictionary(column.type) else column)
    found: dict[str, int] = {}
    for value, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
        text = "" if value is None else text_of(value)
        found[text] = found.get(text, 0) + count
    by_size = all(number_of(text) is not None for text in found)
    ordered = sorted(found, key=float if by_size else None)
    return ordered, np.array([found[text] for text in ordered])


def _is_binary(column: pa.Array) -> bool:
    if is_list(column.type) or len(column.unique()) > 4:
        return False
    texts, _ = _texts_of(column)
    return len(texts) == 2 and "" not in texts


def _is_rating(column: pa.Array) -> bool:
    if is_list(column.type) or len(column.unique()) > _MOST_RATINGS:
        return False
    texts, _ = _texts_of(column)
    return len(texts) > 2 and all(number_of(text) is not None for text in texts)


def _label(sample: LogSample, name: str, any_values: bool = False) -> Label:
    """Decides which values of a column mean 1: of well-known values the reader knows; of two others the larger number,
    or the rarer text; of several numbers those above the mean."""
    column = sample.columns[name]
    if is_list(column.type):
        raise InputError(f"column '{name}' holds lists: no label", "--label")
    texts, counts = _texts_of(column)
    if "" in texts:
        raise InputError(f"column '{name}' is empty in {counts[texts.index('')]:,} rows: no label", "--label")
    numbers = [number_of(text) for text in texts]
    if {text.lower() for text in texts} <= TRUE_TEXTS | FALSE_TEXTS or set(numbers) <= {0.0, 1.0}:
        meant = [text.lower() in TRUE_TEXTS or number == 1 for text, number in zip(texts, numbers, strict=True)]
        return Label(name, (), float(counts[meant].sum() / counts.sum()), "")
    if len(texts) == 2:
        chosen = [1] if None not in numbers else [int(np.argmin(counts))]
        why = "" if set(numbers) == {-1.0, 1.0} else f"the other value is {texts[1 - chosen[0]]!r}"
    elif None not in numbers and len(texts) <= _MOST_RATINGS:
        values = np.array(numbers, float)
        mean = float((values * counts).sum() / counts.sum())
        chosen = np.flatnonzero(values > mean).tolist()
        why = f"those above the mean, {mean:.2f}, of {', '.join(texts)}"
    elif any_values:
        chosen, why = [], ""
    else:
        shown = ", ".join(map(repr, texts[:5]))
        raise InputError(f"column '{name}' has {len(texts):,} different values ({shown}, ...): no label", "--label")
    negative = (texts[1 - chosen[0]],) if len(texts) == 2 and len(chosen) == 1 else ()
    share = float(counts[chosen].sum() / counts.sum())
    return Label(name, tuple(texts[i] for i in chosen), share, why, negative)


def has_clicks(sample: LogSample) -> bool:
    """Whether a column is named like clicks and has two values: the file is a click log beyond doubt."""
    return any(is_named(name, _CLICKS) and _is_binary(column) for name, column in sample.columns.items())


def _are_facts(sample: LogSample) -> bool:
    """Whether columns are surely head, relation and tail, all texts, and what is beside them, such as a time."""
    if any(map(_is_binary, sample.columns.values())) or any(is_list(each.type) for each in sample.columns.values()):
        return False
    values = [Values([text_of(each) for each in column.to_pylist()]) for column in sample.columns.values()]
    choice = choose(values)
    if choice is None or choice.doubt or len(choice.chosen) < 3:
        return False
    return all(values[number].integers is None for number in choice.chosen)


def looks_like_edges(sample: LogSample) -> bool:
    """Whether a file holds edges rather than a click log: it has two or three columns, or columns named like the ends
    of edges, and no column of labels except texts between the ends, which are relations; or up to five, of which three
    are surely these."""
    width = len(sample.names)
    said = roles(sample.names) if sample.header else None
    if sample.format == "libsvm" or len(sample.columns) != width:
        return False
    if width > (5 if said else 3):
        return width <= 5 and _are_facts(sample)
    ends = (said[0], said[-1]) if said else (0, width - 1)
    if width < 2 or any(_is_binary(sample.columns[sample.names[end]]) for end in ends):
        return False
    try:
        label = guess_label(sample)
    except InputError:
        return True
    if sample.names.index(label.name) in ends:
        return False
    return not sample.header or said is not None and bool(label.positive) and number_of(label.positive[0]) is None
