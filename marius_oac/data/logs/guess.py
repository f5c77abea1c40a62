"""Guesses what the columns of a click log are from its first rows, as a starting point for a configuration.

The kind of a column is the first that applies:

    unusable     only nulls, a single value, or something that is neither number, text nor list of these
    time         dates, numbers of seconds to nanoseconds since 1970, or a name such as `timestamp`: left out, since a
                 model never sees the same time again
    row_number   integers that count the rows, or texts that are all different; so are ids that are all different, if
                 these are all rows or many: left out
    categorical  integers, also written as 69.0, that are named like ids, have few values, leading zeros or more digits
                 than a float holds, or are far from 0 and close together, as codes are; truth values and other texts.
                 Few values that are each there often need no question: a category learns what a number could say
    numeric      other numbers, or texts nearly all of which are numbers
    multi_valued lists, texts such as [2, 12], or texts in which a separator often stands between repeated values

A guess that could well be wrong has a doubt, which says why, and the key of the configuration that changes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import LIST
from marius_oac.data.logs.evidence import UNITS, Evidence
from marius_oac.data.logs.sample import LogSample, read_sample
from marius_oac.data.logs.schema import is_list, is_text, is_usable, plain
from marius_oac.data.reading.sources import paths_of

_OFTEN = 25  # rows with each value on average: a category of so few values learns whatever a number could say
_FEWER = 20  # at most so many different integers are categories, unless most of them occur once
FEW = 32  # so many if they are spread over their range, as counts are not
_FAR = 100  # from 0, where counts don't begin, but numbers of things may
_NARROW = 200  # and their range is wider than this
_MOST_LISTED = 40  # columns that a message lists
_SEPARATORS = (" > ", "|", ";", ",", " ")
_MANY = 100  # rows needed to conclude something from values that are all different
_MANY_IDS = 10_000  # and of a part of a log, from different ids: of 10 million users five would be there twice
_NEARLY = 0.9  # of the rows with a value: then the other texts may mean missing
_MOST_ODD = 20  # different ones of such texts
_UNITS_OF_TIME = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds", 10**9: "nanoseconds"}
# fmt: off
_IDS = frozenset((
    "id", "ids", "uid", "gid", "uuid", "guid", "key", "code", "hash", "zip", "zipcode", "postcode", "postal", "user",
    "item", "movie", "film", "book", "song", "artist", "product", "sku", "ip", "phone", "device", "site", "page", "url",
    "domain", "ad", "advertiser", "publisher", "creative", "category", "cat", "brand", "shop", "store", "seller",
    "merchant", "country", "city", "region", "state", "language", "locale", "browser", "os", "version", "gender", "sex",
    "customer", "session", "campaign", "video", "article", "news", "track", "account", "type", "class", "group",
    "segment", "channel", "slot", "occupation", "job", "weekday", "dow", "zone", "app", "model", "network", "banner",
    "nr", "plz",
))
_TIMES = frozenset((
    "time", "timestamp", "datetime", "date", "ts", "unixtime", "epoch", "created", "updated", "at", "us", "ms", "ns",
))
_QUANTITIES = frozenset((
    "age", "price", "cost", "amount", "count", "num", "number", "qty", "quantity", "size", "score", "rate", "ratio",
    "duration", "length", "width", "height", "weight", "total", "sum", "avg", "mean", "views", "visits", "clicks",
    "balance", "income", "gain", "loss", "hours", "minutes", "days", "seconds", "distance", "rating", "discount",
    "year", "rank", "position", "depth", "level", "temperature", "tenure", "bal", "amt", "limit",
))
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
        section: further keys of the column's section.
        odd: texts among its numbers that are taken for missing ones.
        doubt: why the guess may be wrong, and the key that changes it; empty: it is certain.
    """

    name: str
    kind: str
    why: str
    values: int
    missing: int = 0
    section: Mapping[str, Any] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def role(self) -> str:
        """The key under `data` for it."""
        return self.kind if self.kind in ("numeric", "categorical", "multi_valued") else "ignored"

    @property
    def line(self) -> str:
        """What a user is told of a guess that may be wrong."""
        return f"column '{self.name}' is taken for {self.kind}: {self.doubt}"


def guess(sample: LogSample, missing: Sequence[str] = ()) -> list[Column]:
    """A guess for each column, in the file's order. `missing`: see `data.missing`."""
    enough = _MANY if sample.whole else _MANY_IDS
    found = [guess_column(name, column, enough, missing) for name, column in sample.columns.items()]
    if sample.delimiter == ";":  # since commas are decimal marks
        found = [
            replace(each, doubt="") if each.section.keys() == {"decimal"} and not each.odd else each for each in found
        ]
    return found + [_of_type(name, kind) for name, kind in sample.unusable.items()]


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


def is_named(name: str, known: frozenset[str]) -> bool:
    """Whether the last word of a name is one of these."""
    found = words(name)
    return bool(found) and found[-1] in known


def is_id(name: str) -> bool:
    """Whether a column is named like an id, or another category."""
    return is_named(name, _IDS)


def _is_quantity(name: str) -> bool:
    return is_named(name, _QUANTITIES) or (words(name) or [""])[-1].endswith("price")  # such as payprice


def guess_column(name: str, column: pa.Array, enough: int, missing: Sequence[str] = ()) -> Column:
    """Guesses a column. `enough`: so many different ids, if none is there twice, are one for each row."""
    kind = plain(column.type)
    if pa.types.is_null(kind) or not is_usable(kind):
        return _of_type(name, str(kind))
    if is_list(kind):
        return _of_lists(name, column)
    if pa.types.is_temporal(kind):
        return Column(name, "time", f"{kind}", 0, column.null_count)
    if pa.types.is_boolean(kind):
        return Column(name, "categorical", "true or false", 2, column.null_count)
    found = Evidence.of(column, missing)
    if not found.known:
        return Column(name, "unusable", "has no value", 0, found.missing)
    numbers = found.numbers.all() and not (is_text(kind) and found.leading_zeros)
    guessed = (_of_numbers if numbers else _of_texts)(name, found, enough)
    if found.merged and guessed.kind == "categorical":
        doubt = f"{found.merged!r} is taken for the same value as the whole number (kind: verbatim in its section)"
        return replace(guessed, doubt=doubt)
    return guessed


def _of_type(name: str, kind: str) -> Column:
    what = "nothing" if kind == "null" else f"{kind}, which no model is made for"
    return Column(name, "unusable", f"holds {what}", 0)


def _of_lists(name: str, column: pa.Array) -> Column:
    """Lists of texts, of integers, or of whole numbers."""
    values = pc.list_flatten(column)
    fractions = pa.types.is_floating(values.type) or pa.types.is_decimal(values.type)
    if pa.types.is_temporal(values.type) or fractions and not Evidence.of(values).whole:
        return _of_type(name, f"lists of {values.type}")
    most = pc.max(pc.list_value_length(column)).as_py() or 0
    return Column(name, "multi_valued", f"up to {most} values", 0, column.null_count)


def _of_texts(name: str, found: Evidence, enough: int) -> Column:
    """Guesses a column of texts that aren't all numbers."""
    guessed = _of_written_numbers(name, found)
    if guessed is not None:
        return guessed
    odd = ~found.numbers
    share = 1 - found.rows_of(odd) / found.known
    if share >= _NEARLY and odd.sum() <= _MOST_ODD and not found.leading_zeros:
        return _of_nearly_numbers(name, found, odd, enough)
    if found.times:
        return Column(name, "time", f"such as {found.texts[0].as_py()}", found.different, found.missing)
    guessed = _of_categories(name, found, enough)
    if (
        1 > share >= 1 - _NEARLY
        and not (found.different <= FEW or found.one_width or is_id(name))
        and (guessed.kind == "categorical")
    ):
        doubt = f"{share:.0%} of its texts are numbers, others are {found.shown(odd)} (data.numeric, data.missing)"
        return replace(guessed, doubt=f"{guessed.why}: {doubt}")
    return guessed


def _of_written_numbers(name: str, found: Evidence) -> Column | None:
    """The column if nearly all texts with digits are numbers that are written in one way, such as $8,405.00."""
    odd, numbers = ~found.digits, found.some(found.digits)
    few = odd.sum() <= _MOST_ODD and numbers.known >= _NEARLY * found.known
    way = numbers.written if few and not numbers.leading_zeros else None
    if way is None:
        return None
    section = way.model_dump(exclude_defaults=True, exclude={"name"})
    shown, texts = numbers.shown(~numbers.numbers), numbers.texts

    def some(pattern: str) -> bool:
        return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())

    # Of 101,205 nobody knows whether these are thousands, decimals or a list.
    told = way.thousands is None or some(r"\.[0-9]") or some("[0-9],[0-9]+,") and some("^[^0-9]*[0-9]{1,2},")
    both = way.decimal == "," and some(r"\.[0-9]{3},")
    sure = (both or way.decimal == "." and way.thousands in (None, ",") and told) and (
        way.unit in (None, *UNITS) or some(rf"[0-9]\s+{way.unit}$")
    )
    how = ", ".join(f"{key}: {value!r}" for key, value in section.items())
    doubts = [] if sure else [f"texts such as {shown} are read as numbers ({how} in its section of data.numeric)"]
    return _with_odd(Column(name, "numeric", f"numbers such as {shown}", found.different, found.missing, section),
                     found, odd, doubts)  # fmt: skip


def _with_odd(column: Column, found: Evidence, odd: np.ndarray, doubts: list[str]) -> Column:
    """A numeric column in which some texts, bool [n], are taken for missing numbers."""
    if not odd.any():
        return replace(column, doubt="; ".join(doubts))
    rows, texts = found.rows_of(odd), found.texts.filter(pa.array(odd)).to_pylist()
    said = f"{found.shown(odd)}, in {rows:,} rows, is taken for a missing number (data.missing)"
    return replace(column, odd=tuple(texts), missing=found.missing + rows, doubt="; ".join([*doubts, said]))


def _of_nearly_numbers(name: str, found: Evidence, odd: np.ndarray, enough: int) -> Column:
    """Guesses a column nearly all of whose texts are numbers. Ids and codes may have texts among them."""
    guessed = _of_numbers(name, found.some(~odd), enough)
    if guessed.kind in ("categorical", "row_number", "unusable"):
        if guessed.kind == "categorical" and not is_id(name) and found.different > FEW:
            return replace(guessed, missing=found.missing, doubt=guessed.doubt or f"{guessed.why} (data.numeric)")
        return replace(guessed, kind="categorical", why=f"{found.different:,} values", missing=0)
    if guessed.kind != "numeric":
        return guessed
    return _with_odd(guessed, found, odd, [guessed.doubt] if guessed.doubt else [])


def _of_categories(name: str, found: Evidence, enough: int) -> Column:
    brackets = pc.match_substring_regex(found.texts, r"^(\[.*\]|\(.*\)|\{.*\})$").to_numpy(zero_copy_only=False)
    if found.rows_of(brackets) >= _NEARLY * found.known:
        return _of_written_lists(name, found)
    separator = _separator(found)
    if separator is not None:
        why = f"values with {separator!r} between them"
        section = {} if separator == "|" else {"separator": separator}
        several = pc.match_substring_regex(found.texts, r"^[^\s,]+(,[^\s,]+){2,}$")
        sure = separator in (" > ", "|", ";") or (words(name) or [""])[-1].endswith("s") or pc.any(several).as_py()
        doubt = "" if sure else f"{why}, such as {found.shown()} (data.categorical: one value each)"
        return Column(name, "multi_valued", why, found.different, 0, section, doubt=doubt)
    if found.different == 1 and found.known == found.rows:
        return Column(name, "unusable", f"is {found.texts[0].as_py()!r} in all rows", 1)
    if found.different == found.known >= (enough if is_id(name) else _MANY):
        return Column(name, "row_number", "another text in each row", found.different)
    guessed = Column(name, "categorical", f"{found.different:,} values", found.different)
    if found.twice:
        doubt = f"{found.twice!r} is another value than the same number without zeros (kind: integer in its section)"
        return replace(guessed, doubt=doubt)
    if found.different * 2 > found.known >= _MANY and not is_id(name):
        doubt = f"{found.different:,} different texts in {found.known:,} rows, too many to learn from (data.ignored)"
        return replace(guessed, doubt=doubt)
    return guessed


def _of_written_lists(name: str, found: Evidence) -> Column:
    """Texts such as [2, 12, 21]: lists of whole numbers or of texts. Vectors are no feature."""
    inside = pc.utf8_trim(found.texts, "[](){} ")
    pieces = Evidence.of(pc.list_flatten(pc.split_pattern_regex(inside, r"\s*,\s*")))
    if pieces.known and pieces.numbers.all() and not pieces.whole:
        doubt = f"lists of fractions, such as {found.shown()[:60]}, are no ids (data.multi_valued)"
        return Column(name, "unusable", "lists of fractions", found.different, doubt=doubt)
    if pc.any(pc.match_substring_regex(inside, r"[0-9] +[0-9]")).as_py():  # as NumPy prints arrays
        doubt = f"texts such as {found.shown()[:60]} have no commas between values (data.multi_valued)"
        return Column(name, "categorical", f"{found.different:,} values", found.different, doubt=doubt)
    return Column(name, "multi_valued", "lists as texts", found.different, 0, {"separator": LIST})


def _of_numbers(name: str, found: Evidence, enough: int) -> Column:
    """Guesses a column of numbers."""
    count, known = found.different, found.known
    low, high = float(found.values.min()), float(found.values.max())

    def guessed(kind: str, why: str, doubt: str = "") -> Column:
        return Column(name, kind, why, count, found.missing, doubt=f"{why} ({doubt})" if doubt else "")

    if count == 1 and not found.missing:
        return guessed("unusable", f"is {found.texts[0].as_py()} in all rows")
    time = _time(name, found, low, high)
    if time is not None:
        return time
    if known >= _MANY and found.consecutive:
        return guessed("row_number", "counts the rows")
    if not found.whole:
        return guessed("numeric", f"{low:g} to {high:g}")
    if is_id(name) and count == known >= enough:
        return guessed("row_number", "another number in each row")
    if is_id(name):
        return guessed("categorical", f"{count:,} values, named like an id")
    between = f"{count:,} different whole numbers from {low:g} to {high:g}"
    dense = count * 2 > high - low + 1
    few = count <= _FEWER or count <= FEW and found.median * 4 > high
    if few and (high - low <= _NARROW or (found.counts == 1).sum() * 2 <= count):
        sure = count == 2 or _is_quantity(name) or known >= _OFTEN * count
        return guessed("categorical", f"{count:,} values" if sure else between, "" if sure else "data.numeric")
    if max(abs(low), abs(high)) > 2**53:
        if count == known >= enough:
            return guessed("row_number", "another number in each row")
        return guessed("categorical", f"{count:,} values of many digits")
    if _is_quantity(name):
        return guessed("numeric", f"{low:g} to {high:g}")
    if low > 1000 and high - low < low / 4:
        return guessed("categorical", f"{count:,} values from {low:.0f} to {high:.0f}, like codes", "data.numeric")
    # Counts and amounts are mostly small, ids are spread over their range.
    doubtful = known >= 4 * count and (dense and low in (0, 1) or found.median * 4 > high or low >= _FAR)
    return guessed("numeric", between if doubtful else f"{low:g} to {high:g}", "data.categorical" if doubtful else "")


def _time(name: str, found: Evidence, low: float, high: float) -> Column | None:
    """The column if its numbers are times: since 1970 in any unit, dates such as 20240131, or by its name."""
    named = is_named(name, _TIMES)
    if is_id(name):
        return None
    for unit, unit_name in _UNITS_OF_TIME.items():
        if 8e8 * unit < low and high < 2.2e9 * unit:
            first = datetime.fromtimestamp(low / unit, UTC)
            why = f"{low:.0f} to {high:.0f}"
            sure = named or {"time", "timestamp", *_TIMES} & set(words(name))
            doubt = f"{unit_name} since 1970, from {first:%Y-%m-%d} on, are left out (data.numeric, data.categorical)"
            return Column(name, "time", why, found.different, found.missing, doubt="" if sure else doubt)
    if low >= 19000101 and high <= 21001231 and found.whole and found.different > 1:
        days = pc.utf8_slice_codeunits(found.texts, 4, 8)
        if pc.all(pc.match_substring_regex(days, r"^(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])$")).as_py():
            doubt = "" if named else "dates such as 20240131 are left out (data.categorical)"
            return Column(name, "time", f"{low:.0f} to {high:.0f}", found.different, found.missing, doubt=doubt)
    if named and (low > 1e8 or not found.whole):
        return Column(name, "time", f"{low:.0f} to {high:.0f}", found.different, found.missing)
    return None


def _separator(found: Evidence) -> str | None:
    """The separator between the values in texts, if there is one: it is in at least a tenth of the texts, between
    pieces that repeat. A blank only separates integers."""
    texts = pa.array(np.arange(found.different).repeat(found.counts))
    texts = found.texts.take(texts)
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
