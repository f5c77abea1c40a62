"""Guesses what the columns of a click log are from its first rows, as a starting point for a configuration.

The kind of a column is the first that applies:

    unusable     only nulls, a single value, or something that is neither number, text nor list
    time         dates, or a name such as `timestamp`: left out, since a model never sees the same time again
    multi_valued lists, or texts in which a separator often stands between repeated values
    row_number   integers that count the rows, or texts that are all different; so are ids that are all different, if
                 these are all rows or many: left out
    categorical  texts and truth values; integers that are named like ids, have few values, leading zeros or more digits
                 than a float holds, or are far from 0 and close together, as codes are
    numeric      other numbers
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.labels import FALSE_TEXTS, TRUE_TEXTS, number_of
from marius_oac.data.logs.sample import LogSample, read_sample
from marius_oac.data.logs.schema import MISSING_TEXTS, is_list, is_text, looks_like_a_time, plain
from marius_oac.data.prepare.edge_file import roles
from marius_oac.data.prepare.sources import paths_of
from marius_oac.errors import InputError

FEW = 20  # at most so many different integers are categories, unless most of them occur once
_NARROW = 200  # and their range is wider than this
_MOST_LISTED = 40  # columns that a message lists
_SEPARATORS = ("|", ";", ",", " ")
_MANY = 100  # rows needed to conclude something from values that are all different
_MANY_IDS = 10_000  # and of a part of a log, from different ids: of 10 million users five would be there twice
# fmt: off
_IDS = frozenset((
    "id", "ids", "uid", "gid", "uuid", "guid", "key", "code", "hash", "zip", "zipcode", "postcode", "postal", "user",
    "item", "movie", "film", "book", "song", "artist", "product", "sku", "ip", "phone", "device", "site", "page", "url",
    "domain", "ad", "advertiser", "publisher", "creative", "category", "cat", "brand", "shop", "store", "seller",
    "merchant", "country", "city", "region", "state", "language", "locale", "browser", "os", "version", "gender", "sex",
))
_TIMES = frozenset((
    "time", "timestamp", "datetime", "date", "ts", "unixtime", "epoch", "created", "updated",
))
_CLICKS = frozenset((
    "label", "click", "clicked", "clicks", "target", "y", "outcome", "response", "converted", "conversion",
))
_RATINGS = frozenset(("rating", "ratings", "stars", "score"))
# fmt: on


@dataclass(frozen=True)
class Column:
    """A column and its guessed kind.

    Attributes:
        name: of the column.
        kind: see the module's docstring.
        why: the reason, in a few words.
        values: the number of different values in the rows.
        missing: the number of rows without a value.
        separator: of a multi-valued text.
    """

    name: str
    kind: str
    why: str
    values: int
    missing: int = 0
    separator: str | None = None


@dataclass(frozen=True)
class Label:
    """The column of labels.

    Attributes:
        name: of the column.
        positive: the values that mean 1; empty if the reader knows them.
        share: the fraction of the rows with label 1.
        why: the reason for `positive`, in a few words.
    """

    name: str
    positive: tuple[str, ...]
    share: float
    why: str


def guess(sample: LogSample) -> list[Column]:
    """A guess for each column, in the file's order."""
    enough = _MANY if sample.whole else _MANY_IDS
    return [_guessed(name, column, enough) for name, column in sample.columns.items()]


def offered(config: LogConfig) -> str:
    """A text for messages: the columns of the log's first file, with a guess for each."""
    path = next(paths_of(config.train[0]))
    columns = guess(read_sample(path, config.format, config.delimiter, config.columns))
    listed = ", ".join(
        f"{each.name} ({each.kind})" for each in columns[:_MOST_LISTED] if each.name != config.label.column
    )
    more = f" and {len(columns) - _MOST_LISTED} more" if len(columns) > _MOST_LISTED else ""
    return f"the columns are, with a guess of each: {listed}{more}"


def words(name: str) -> list[str]:
    """The words of a name, in lower case: movie and id of `movieId` and `movie_id`."""
    return [each.lower() for each in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _guessed(name: str, column: pa.Array, enough: int) -> Column:
    """Guesses a column. `enough`: so many different ids, if none is there twice, are one for each row."""
    kind = plain(column.type)
    if is_list(kind) and not (is_text(kind.value_type) or pa.types.is_integer(kind.value_type)):
        return Column(name, "unusable", f"holds {kind}, which no model is made for", 0)
    if is_list(kind):
        lists = pc.list_value_length(column)
        return Column(name, "multi_valued", f"up to {pc.max(lists).as_py() or 0} values", 0, column.null_count)
    if is_text(kind):
        return _of_texts(name, column.cast(pa.string()) if column.type != pa.string() else column, enough)
    if pa.types.is_temporal(kind):
        return Column(name, "time", f"{kind}", 0, column.null_count)
    if pa.types.is_boolean(kind):
        return Column(name, "categorical", "true or false", 2, column.null_count)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = column.drop_null().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        integers = pa.types.is_integer(kind)
        return _of_numbers(name, numbers, column.null_count, integers, integers, enough)
    what = "nothing" if pa.types.is_null(kind) else f"{kind}, which no model is made for"
    return Column(name, "unusable", f"holds {what}", 0, column.null_count)


def _of_texts(name: str, column: pa.Array, enough: int) -> Column:
    texts = pc.utf8_trim_whitespace(pc.fill_null(column, ""))
    known = texts.filter(pc.invert(pc.is_in(texts, pa.array(sorted(MISSING_TEXTS)))))
    missing = len(texts) - len(known)
    if not len(known):
        return Column(name, "unusable", "has no value", 0, missing)
    numbers = _numbers(known)
    if numbers is not None and not _leading_zeros(known):
        integers = bool((numbers == np.floor(numbers)).all()) and not pc.any(pc.match_substring(known, ".")).as_py()
        return _of_numbers(name, numbers, missing, integers, True, enough)
    different = pc.count_distinct(known).as_py()
    some = known.slice(0, 200).to_pylist()
    if sum(map(looks_like_a_time, some)) * 10 >= 9 * len(some):
        return Column(name, "time", f"such as {some[0]}", different, missing)
    # A missing text is a category like any other.
    return _of_categories(name, known, different, len(column), enough)


def _of_categories(name: str, known: pa.Array, different: int, rows: int, enough: int) -> Column:
    separator = _separator(known)
    if separator is not None:
        return Column(name, "multi_valued", f"values with {separator!r} between them", different, 0, separator)
    if different == 1 and len(known) == rows:
        return Column(name, "unusable", f"is {known[0].as_py()!r} in all rows", 1)
    if different == len(known) >= (enough if _named(name, _IDS) else _MANY):
        return Column(name, "row_number", "another text in each row", different)
    return Column(name, "categorical", f"{different:,} values", different)


def _numbers(texts: pa.Array) -> np.ndarray | None:
    """The texts as numbers, float64 [n]; None if one is no number."""
    try:
        return texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None


def _leading_zeros(texts: pa.Array) -> bool:
    """Whether one of these numbers has leading zeros, as codes have."""
    return bool(pc.any(pc.match_substring_regex(texts, r"^0\d")).as_py())


def _of_numbers(
    name: str, numbers: np.ndarray, missing: int, integers: bool, categorical_texts: bool, enough: int
) -> Column:
    """Guesses a column of numbers, float64 [n]. `categorical_texts`: it can also be read as categories, unlike floats
    in Parquet."""
    finite = numbers[np.isfinite(numbers)]
    different, counts = np.unique(finite, return_counts=True)
    missing += numbers.size - finite.size
    count = different.size

    def found(kind: str, why: str) -> Column:
        return Column(name, kind, why, count, missing)

    if not count:
        return found("unusable", "has no value")
    low, high = different[0], different[-1]
    if count == 1 and not missing:
        return found("unusable", f"is {low:g} in all rows")
    if _named(name, _TIMES) and (low > 1e8 or not integers) or _epoch_seconds(low, high) and integers:
        return found("time", f"{low:.0f} to {high:.0f}")
    if integers and count == finite.size >= _MANY and (np.diff(finite) == 1).all():
        return found("row_number", "counts the rows")
    if integers and categorical_texts:
        if _named(name, _IDS) and count == finite.size >= enough:
            return found("row_number", "another number in each row")
        if _named(name, _IDS):
            return found("categorical", f"{count:,} values, named like an id")
        if count <= FEW and (high - low <= _NARROW or (counts == 1).sum() * 2 <= count):
            return found("categorical", f"{count:,} values")
        if max(abs(low), abs(high)) > 2**53:
            return found("categorical", f"{count:,} values of many digits")
        if low > 1000 and high - low < low / 4:
            return found("categorical", f"{count:,} values from {low:.0f} to {high:.0f}, like codes")
    return found("numeric", f"{low:g} to {high:g}")


def _epoch_seconds(low: float, high: float) -> bool:
    """Whether the range is one of seconds or milliseconds since 1970, in the years 1995 to 2040."""
    return any(8e8 * unit < low and high < 2.2e9 * unit for unit in (1, 1000))


def _named(name: str, known: frozenset[str]) -> bool:
    """Whether the last word of a name is one of these."""
    found = words(name)
    return bool(found) and found[-1] in known


def _separator(texts: pa.Array) -> str | None:
    """The separator between the values in texts, if there is one: it is in at least a tenth of the texts, between
    pieces that repeat. A blank only separates integers."""
    for separator in _SEPARATORS:
        having = pc.match_substring(texts, separator)
        if pc.mean(having).as_py() < 0.1:
            continue
        pieces = pc.list_flatten(pc.split_pattern(texts, separator))
        different, several = pc.unique(pieces), pc.count_distinct(texts.filter(having)).as_py()
        if separator == " " and not pc.all(pc.match_substring_regex(different, r"^[0-9]*$")).as_py():
            continue
        if separator == "," and pc.any(pc.match_substring_regex(different, "^ ")).as_py():
            continue  # prose
        if len(different) * 2 <= len(pieces) and several > 1 and len(different) < 2 * several:
            return separator
    return None


def guess_label(sample: LogSample, asked: str | None = None, any_values: bool = False) -> Label:
    """Guesses the column of labels, or describes the one that is `asked` for.

    With `any_values` that column may hold values of which it can't be guessed which mean 1: none does in the result.

    Raises:
        InputError: there is none, or several are possible; lists them.
    """
    if asked is not None:
        return _label(sample, _asked(sample, asked), any_values)
    two = [name for name in sample.names if _is_binary(sample.columns[name])]
    named = [name for name in two if _named(name, _CLICKS)] or [name for name in two if words(name)[:1] == ["is"]]
    rated = [name for name in sample.names if _named(name, _RATINGS) and _is_rating(sample.columns[name])]
    for found in (named, [] if named else rated, two):
        if len(found) == 1:
            return _label(sample, found[0])
    ends = [name for name in (sample.names[0], sample.names[-1]) if name in two]
    if len(ends) == 1 and not named:
        return _label(sample, ends[0])
    of = f"it may be one of {', '.join(map(repr, two[:10]))}" if two else "no column has two values"
    raise InputError(f"which column says what was clicked? {of}: name it with --label COLUMN", sample.path)


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
        text = "" if value is None else str(value).strip()
        text = text.removesuffix(".0") if isinstance(value, float) else text
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
    if is_list(column.type) or len(column.unique()) > FEW:
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
        why = f"the other value is {texts[1 - chosen[0]]!r}"
    elif None not in numbers and len(texts) <= FEW:
        values = np.array(numbers, float)
        mean = float((values * counts).sum() / counts.sum())
        chosen = np.flatnonzero(values > mean).tolist()
        why = f"those above the mean, {mean:.2f}, of {', '.join(texts)}"
    elif any_values:
        chosen, why = [], ""
    else:
        shown = ", ".join(map(repr, texts[:5]))
        raise InputError(f"column '{name}' has {len(texts):,} different values ({shown}, ...): no label", "--label")
    return Label(name, tuple(texts[i] for i in chosen), float(counts[chosen].sum() / counts.sum()), why)


def looks_like_edges(sample: LogSample) -> bool:
    """Whether a file holds edges rather than a click log: it has two or three columns, or columns named like the ends
    of edges, and no column of labels except texts between the ends, which are relations."""
    width = len(sample.names)
    said = roles(sample.names) if sample.header else None
    if sample.format == "libsvm" or len(sample.columns) != width or width > (5 if said else 3):
        return False
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
