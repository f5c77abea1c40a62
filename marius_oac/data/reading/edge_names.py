"""Names of the columns of edges: whether a first line holds some, and which column each means."""

from __future__ import annotations

import re
from collections.abc import Sequence

from marius_oac.data.reading.edge_values import FLOAT, INTEGER, TIME, Values

# fmt: off
_HEADS = frozenset((
    "head", "heads", "source", "src", "from", "subject", "subj", "start", "begin", "user", "follower", "citing",
    "parent",
))
_TAILS = frozenset((
    "tail", "tails", "target", "tgt", "destination", "dest", "dst", "to", "object", "obj", "end", "item", "followee",
    "followed", "cited", "child",
))
_RELATIONS = frozenset((
    "relation", "relations", "rel", "predicate", "pred", "type", "label", "edge", "edgetype", "relationtype",
    "property", "link", "linktype", "relationship",
))
_OTHERS = frozenset((
    "weight", "timestamp", "time", "date", "datetime", "count", "rating", "score", "value", "year", "created", "sign",
    "confidence", "probability", "ts",
))
_LETTERS = (
    ("h", "r", "t"), ("h", "t", "r"), ("h", "t"), ("s", "p", "o"), ("s", "r", "o"), ("s", "o"), ("s", "t"), ("u", "v"),
    ("i", "j"), ("x", "y"), ("s", "p", "o", "t"), ("s", "r", "o", "t"), ("u", "v", "w"), ("u", "v", "t"),
    ("i", "j", "w"), ("s", "t", "w"),
)
"""Single letters for column names. A letter depends on the others: t is a tail beside h, and a time beside o and v."""
# fmt: on
_HEAD_LETTERS, _TAIL_LETTERS = "hsuix", "ovjyt"
_FEW = 3  # shapes of names in a column, which a name of another shape does not belong to
_ENOUGH = 20  # rows in which a name would be found again if it was a node's


def roles(names: Sequence[str]) -> list[int] | None:
    """The numbers of the columns of head, relation and tail, or of head and tail if no name means a relation; None if
    the names don't tell."""
    words = [_word(name) for name in names]
    if _are_letters(words):
        start = next(number for number, word in enumerate(words) if word in _HEAD_LETTERS)
        ends = [number for number, word in enumerate(words) if word in _TAIL_LETTERS and number != start]
        middle = [number for number, word in enumerate(words) if word in ("r", "p")]
        return [start, *middle, min(ends, key=lambda number: _TAIL_LETTERS.index(words[number]))]
    found = [_the_one(words, known) for known in (_HEADS, _RELATIONS, _TAILS)]
    head, relation, tail = found
    if head is None or tail is None:
        return _numbered(names)
    if relation is None:
        return None if any(word in _RELATIONS for word in words) else [head, tail]
    return [head, relation, tail]


def _are_letters(words: Sequence[str]) -> bool:
    """Whether these are single letters that mean columns, beside names of weights, times and the like."""
    return tuple(word for word in words if word not in _OTHERS) in _LETTERS


def is_known(name: str) -> bool:
    """Whether a name means head, relation or tail, or what edges have beside these."""
    return _word(name) in {"", *_HEADS, *_TAILS, *_RELATIONS, *_OTHERS}


def means_other(name: str) -> bool:
    """Whether a name means what edges have beside head, relation and tail, such as a weight or a time."""
    return _word(name) in {"", *_OTHERS}


def is_relation(name: str, values: Values) -> bool:
    """Whether a column beside head and tail may be the relation's: its name means no weight, time or the like, and its
    values are names, some of which are there twice."""
    return not means_other(name) and not values.is_no_name and not values.each_differs


def _the_one(words: Sequence[str], known: frozenset[str]) -> int | None:
    """The index of the only word that is one of these; None if there is none or more than one."""
    found = [number for number, word in enumerate(words) if word in known]
    return found[0] if len(found) == 1 else None


def _numbered(names: Sequence[str]) -> list[int] | None:
    """The only two names that differ in nothing but 1 and 2, such as `id_1` and `id_2`, and a relation."""
    stems = [re.sub("1$", "", name) for name in names]
    pairs = [(head, names.index(f"{stem}2")) for head, (name, stem) in enumerate(zip(names, stems, strict=True))
             if stem != name and f"{stem}2" in names]  # fmt: skip
    if len(pairs) != 1:
        return None
    relation = _the_one([_word(name) for name in names], _RELATIONS)
    return [pairs[0][0], *([] if relation is None else [relation]), pairs[0][1]]


def same_words(fields: Sequence[str], names: Sequence[str]) -> bool:
    """Whether these are the same, in any order, case and spacing."""
    mine, theirs = (sorted(each.strip().casefold() for each in some) for some in (fields, names))
    return mine == theirs


def _word(name: str) -> str:
    """The name in lower case without punctuation and without the endings id, name and node: `source` of `source_id`,
    `from` of `FromNode`, `start` of `:START_ID`."""
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    for ending in ("id", "name", "node"):
        shorter = word.removesuffix(ending)
        word = shorter or word
    return word


def header(first: Sequence[str], rows: Sequence[Sequence[str]], may_be_alone: bool = False) -> tuple[bool, bool]:
    """Whether the fields of a first line are names of columns, and whether that is sure.

    They are if they are well-known names, if they are texts above nothing but numbers, or if they are found nowhere
    else and one at an end is written otherwise than all below it, which are written alike. Without rows they are none,
    unless they may be alone, as in one of several files.
    """
    if not (rows or may_be_alone) or any(len(row) != len(first) for row in rows) or any(map(_is_number, first)):
        return False, True
    columns = [{row[number].strip() for row in rows} for number in range(len(first))]
    words, fields = [_word(field) for field in first], [field.strip() for field in first]
    numeric = [bool(rows) and all(map(_is_number, column)) for column in columns]
    if numeric[0] and numeric[-1]:
        return True, True
    again = any(field in column for field, column in zip(fields, columns, strict=True))
    if all(map(is_known, first)) and _HEADS & set(words) and _TAILS & set(words):
        return True, not again
    if not rows:
        return False, True
    if _are_letters(words):
        return not again, again or len(rows) >= _ENOUGH
    if any(numeric) and len(rows) >= _ENOUGH:  # an edge's field would be a number there, too
        return True, len(rows) >= 5 * _ENOUGH
    anywhere = {value for column in columns for value in column}
    if len(rows) < _ENOUGH or any(field in anywhere for field in fields):
        return False, True
    if roles(first) is not None:
        return True, False
    shapes = [set(map(shape, columns[end])) for end in (0, -1)]
    odd = [len(each) <= _FEW and shape(fields[end]) not in each for end, each in zip((0, -1), shapes, strict=True)]
    if any(odd):
        return True, all(odd) and len(rows) >= 5 * _ENOUGH
    return False, not all(re.fullmatch("[A-Za-z_ :-]+", field) for field in fields)


def _is_number(text: str) -> bool:
    return bool(INTEGER.fullmatch(text) or FLOAT.fullmatch(text) or TIME.fullmatch(text))


def shape(text: str) -> str:
    """A text with one letter and one digit in place of several: `n9` of `node12` is `a9`."""
    return re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", text))
