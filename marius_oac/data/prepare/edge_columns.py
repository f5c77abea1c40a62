"""Names of the columns of edges: whether a first line holds names, and which columns are head, relation and tail."""

from __future__ import annotations

import re
from collections.abc import Sequence

# fmt: off
_HEADS = frozenset((
    "head", "heads", "source", "src", "from", "subject", "start", "begin", "node1", "user", "follower", "citing",
    "parent",
))
_TAILS = frozenset((
    "tail", "tails", "target", "destination", "dest", "dst", "to", "object", "end", "node2", "item", "followee",
    "followed", "cited", "child",
))
_RELATIONS = frozenset((
    "relation", "relations", "rel", "predicate", "type", "label", "edge", "edgetype", "relationtype", "property",
    "link", "linktype", "relationship",
))
_OTHERS = frozenset(("weight", "timestamp", "time", "date", "count", "rating", "score", "value", "year"))
# fmt: on
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")


def column_names(count: int) -> list[str]:
    """["head", "relation", "tail"], or ["head", "tail"] for two columns."""
    return ["head", "relation", "tail"] if count == 3 else ["head", "tail"]


def hold_names(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the fields of a first line are names of columns: they are well-known names, or all `rows` that follow
    begin and end with integers and the first line does neither."""
    if not rows or any(len(row) != len(first) for row in rows):
        return False
    words = [_word(field) for field in first]
    known = _HEADS | _TAILS | _RELATIONS | _OTHERS
    if all(word in known for word in words) and _HEADS & set(words) and _TAILS & set(words):
        return True
    ends = (0, len(first) - 1)
    are_ids = all(_INTEGER.fullmatch(row[end]) for row in rows for end in ends)
    return are_ids and not any(_INTEGER.fullmatch(first[end]) for end in ends)


def roles(names: Sequence[str]) -> list[int] | None:
    """The numbers of the columns of head, relation and tail, or of head and tail if no name means a relation; None if
    the names don't tell."""
    words = [_word(name) for name in names]
    found = [_the_one(words, known) for known in (_HEADS, _RELATIONS, _TAILS)]
    head, relation, tail = found
    if head is None or tail is None:
        return None
    if relation is not None:
        return [head, relation, tail]
    others = [number for number, word in enumerate(words) if number not in (head, tail) and word not in _OTHERS]
    return [head, others[0], tail] if len(names) == 3 and others else [head, tail]


def _the_one(words: Sequence[str], known: frozenset[str]) -> int | None:
    """The index of the only word that is one of these; None if there is none or more than one."""
    found = [number for number, word in enumerate(words) if word in known]
    return found[0] if len(found) == 1 else None


def _word(name: str) -> str:
    """The name in lower case without punctuation and without the endings id, name and node: `source` of `source_id`,
    `from` of `FromNode`, `start` of `:START_ID`."""
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    for ending in ("id", "name", "node"):
        shorter = word.removesuffix(ending)
        word = shorter or word
    return word
