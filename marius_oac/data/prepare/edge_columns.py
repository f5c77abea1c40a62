"""Names of the columns of edges: whether a first line holds some, and which of them is head, relation and tail."""

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
    """["head", "relation", "tail"], or without the relation for two columns."""
    return ["head", "relation", "tail"] if count == 3 else ["head", "tail"]


def hold_names(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the fields of a first line are names of columns, by what they are, or by `rows` of fields that follow:
    where all of these begin and end in integers, what does so in neither is no edge."""
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
    """The numbers of the head's, the relation's and the tail's column, or of head and tail where names speak of no
    relation; None where they don't say."""
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
    """The number of the word that is one of these, if there is only one."""
    found = [number for number, word in enumerate(words) if word in known]
    return found[0] if len(found) == 1 else None


def _word(name: str) -> str:
    """What a name is made of: `source` of `source_id`, `FromNode` and `:START_ID`."""
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    for ending in ("id", "name", "node"):
        shorter = word.removesuffix(ending)
        word = shorter or word
    return word
