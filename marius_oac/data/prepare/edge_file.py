"""A file of edges: where it lies, whether its first line holds names, and which columns are head, relation and tail."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marius_oac.errors import InputError

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


def hold_names(first: Sequence[str], rows: Sequence[Sequence[str]], may_be_alone: bool = False) -> bool:
    """Whether the fields of a first line are names of columns: they are well-known names, or all `rows` that follow
    begin and end with integers and the first line does neither. Without rows they are none, unless they may be alone,
    as in one of several files."""
    if not (rows or may_be_alone) or any(len(row) != len(first) for row in rows):
        return False
    words = [_word(field) for field in first]
    known = _HEADS | _TAILS | _RELATIONS | _OTHERS
    if all(word in known for word in words) and _HEADS & set(words) and _TAILS & set(words):
        return True
    ends = (0, len(first) - 1)
    are_ids = all(_INTEGER.fullmatch(row[end]) for row in rows for end in ends)
    return bool(rows) and are_ids and not any(_INTEGER.fullmatch(first[end]) for end in ends)


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
    others = [number for number, word in enumerate(words) if number not in (head, tail) and word not in {"", *_OTHERS}]
    return [head, others[0], tail] if len(names) == 3 and others else [head, tail]


def same_words(fields: Sequence[str], names: Sequence[str]) -> bool:
    """Whether these are the same, in any order, case and spacing."""
    mine, theirs = (sorted(each.strip().casefold() for each in some) for some in (fields, names))
    return mine == theirs


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


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How edges are stored in a file.

    Attributes:
        columns: names or numbers (from 0) of the head, relation and tail columns, or of source and destination.
            Default: columns with such names if the file has names, else the file's two or three columns.
        relations: False ignores the relation column.
        header: whether a text file's first line holds column names; None: guessed, with a warning if it seems to.
        delimiter: one character; default by suffix (tab for .tsv, .txt and .tab, comma for .csv).
        comment: lines of a text file that begin with this are skipped and counted; "" for none.

    Raises:
        InputError: there are not two or three columns, or the delimiter or comment is not one ASCII character.
    """

    columns: tuple[str, ...] | None = None
    relations: bool = True
    header: bool | None = None
    delimiter: str | None = None
    comment: str = "#"

    def __post_init__(self) -> None:
        if self.columns is not None and len(self.columns) not in (2, 3):
            raise InputError(
                f"two (source, destination) or three (head, relation, tail) are needed, not {len(self.columns)}",
                "columns",
            )
        if self.columns is not None and not all(self.columns):
            raise InputError("the name of a column is empty", "columns")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise InputError(f"the same column is named twice: {', '.join(self.columns)}", "columns")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '\r\n"\0'):
            raise InputError(f"one character is needed, not {self.delimiter!r}", "delimiter")
        if self.delimiter is not None and not self.delimiter.isascii():
            raise InputError(f"an ASCII character is needed, not {self.delimiter!r}", "delimiter")
        if self.comment and (len(self.comment) != 1 or not self.comment.isascii() or self.comment in "\r\n\0"):
            raise InputError(f"one ASCII character or nothing is needed, not {self.comment!r}", "comment")


@dataclass(frozen=True)
class Columns:
    """The columns of a file.

    Attributes:
        file: what messages call it.
        kind: text, Parquet or NumPy.
        width: their number.
        names: their names, if the file has names.
        chosen: the numbers of those that are read.
    """

    file: str
    kind: str
    width: int
    names: tuple[str, ...] | None
    chosen: tuple[int, ...]

    def meant(self) -> str:
        """Which columns are read: by name, else all of so many."""
        if self.names is None:
            return f"{self.width} columns"
        return f"columns {', '.join(repr(self.names[each]) for each in self.chosen)}"


@dataclass
class EdgeFile:
    """One file of edges.

    Attributes:
        comment_lines: the number of lines that `readers.read_edges` skipped, which it sets.
        holds: what messages call the rows. Other files of two or three columns of names are read the same way.
        one_of_several: it may have no rows, as others may have some.
        before: the columns of earlier ones of these files, by kind. A text with the same names in its first line has
            them as a header, and none otherwise: files may be parts of one that was cut.
        called: what notes call it.
        columns: what `readers.read_edges` found; None: no rows.
        first_lines: the fields of a text's first lines, where none is before.
    """

    path: Path
    options: ReadOptions
    comment_lines: int = 0
    holds: str = "edges"
    one_of_several: bool = False
    before: Mapping[str, Columns] = field(default_factory=dict)
    called: str = ""
    columns: Columns | None = None
    first_lines: Sequence[Sequence[str]] = ()

    def check_rows(self, rows: int) -> None:
        """Raises InputError if there are none, unless it is one of several files."""
        if not rows and not self.one_of_several:
            raise InputError(f"the file has no {self.holds}", self.path)

    def settle(self, kind: str, width: int, names: Sequence[str] | None, chosen: Sequence[int]) -> None:
        """Notes the columns. Raises InputError if a file before has others: of the same kind, or by their names."""
        named = None if names is None else tuple(names)
        self.columns = found = Columns(self.called or str(self.path), kind, width, named, tuple(chosen))
        for other in self.before.values():
            comparable = other.kind == kind or None not in (other.names, named)
            if comparable and found.meant() != other.meant():
                raise InputError(f"{found.meant()} here, {other.meant()} in {other.file}", self.path)

    def select(self, width: int, names: Sequence[str] | None, first: Sequence[str] = ()) -> list[int]:
        """The numbers of the columns to read, in the order head, relation (if used), tail.

        Args:
            width: the number of columns of the file.
            names: their names, if the file has names.
            first: the fields of a text's first line, for a message.

        Raises:
            InputError: a column is missing, or it is unclear which columns are meant.
        """
        wanted = self.options.columns
        if wanted is None:
            for default in (("head", "relation", "tail"), ("source", "destination")):
                if names and set(default) <= set(names):
                    wanted = default
                    break
        said = roles(names) if names and wanted is None else None
        if wanted is not None:
            found = [self._find(column, width, names) for column in wanted]
        elif said is not None:
            found = said
        elif width in (2, 3):
            found = list(range(width))
        else:
            between = (
                "; say what is between them with --delimiter, such as ' '" if self.path.suffix != ".parquet" else ""
            )
            shown = names or first
            seen = f"; the first line is {', '.join(map(repr, shown[:10]))}" if shown else ""
            how = between if width < 2 else f"; say which with --columns HEAD,RELATION,TAIL, such as 0,1,2{seen}"
            raise InputError(f"2 or 3 columns are expected, {width} found{how}", self.path)
        if len(set(found)) != len(found):
            raise InputError(f"the same column is named twice: {', '.join(wanted or ())}", self.path)
        return found if self.options.relations else [found[0], found[-1]]

    def _find(self, column: str, width: int, names: Sequence[str] | None) -> int:
        if names and column in names:
            return names.index(column)
        if column.isdecimal():
            if int(column) >= width:
                raise InputError(f"there is no column {column}: {width} columns, counted from 0", self.path)
            return int(column)
        if not names:
            raise InputError(f"column {column!r} is a name, but the file has none (no header)", self.path)
        near = difflib.get_close_matches(column, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(map(repr, names[:10]))}"
        raise InputError(f"there is no column {column!r}{hint}", self.path)
