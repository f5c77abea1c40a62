"""A file of edges: where it lies, whether its first line holds names, and which columns are head, relation and tail."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marius_oac.data.reading.edge_names import is_relation, means_other, roles
from marius_oac.data.reading.edge_values import Choice, Values, choose
from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.types import present


def column_names(count: int) -> list[str]:
    """["head", "relation", "tail"], or ["head", "tail"] for two columns."""
    return ["head", "relation", "tail"] if count == 3 else ["head", "tail"]


def _plainly(names: Sequence[str]) -> list[int] | None:
    """The columns that bear the very names by which this package writes edges."""
    for known in (column_names(3), ["source", "destination"]):
        if all(names.count(name) == 1 for name in known):
            return [names.index(name) for name in known]
    return None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How edges are stored in a file.

    Attributes:
        columns: names or numbers (from 0) of the head, relation and tail columns, or of source and destination.
            Default: columns with such names if the file has names, else the file's two or three columns.
        relations: False ignores the relation column.
        header: whether a text file's first line holds column names; None: guessed, with a warning if it seems to.
        delimiter: one character; default by suffix (tab for .tsv, .txt and .tab, comma for .csv) and the first lines.
        comment: lines of a text file that begin with this are skipped and counted; "" for none; None: those with #,
            unless these are edges, as of hashtags.
        quotes: whether fields of a text file may be quoted; None: in a CSV, and where quotes stand around whole fields.

    Raises:
        InputError: there are not two or three columns, or the delimiter or comment is not one ASCII character.
    """

    columns: tuple[str, ...] | None = None
    relations: bool = True
    header: bool | None = None
    delimiter: str | None = None
    comment: str | None = None
    quotes: bool | None = None

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
        padded: of a text, the places in `chosen` of those with a blank behind each delimiter.
    """

    file: str
    kind: str
    width: int
    names: tuple[str, ...] | None
    chosen: tuple[int, ...]
    padded: tuple[int, ...] = ()

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
        like: the columns of the train file. A file of another split without names has the same ones.
        doubtful: whether which columns are meant is a guess, which was told of.
        columns: what `readers.read_edges` found; None: no rows.
        first_lines: the fields of a text's first lines, where none is before.
        told: notes on these files, without names and numbers.
    """

    path: Path
    options: ReadOptions
    comment_lines: int = 0
    holds: str = "edges"
    one_of_several: bool = False
    before: Mapping[str, Columns] = field(default_factory=dict)
    called: str = ""
    like: Columns | None = None
    doubtful: bool = False
    columns: Columns | None = None
    first_lines: Sequence[Sequence[str]] = ()
    told: set[str] = field(default_factory=set)

    def check_rows(self, rows: int) -> None:
        """Raises InputError if there are none, unless it is one of several files."""
        if not rows and not self.one_of_several:
            raise InputError(f"the file has no {self.holds}", self.path)

    def settle(
        self, kind: str, width: int, names: Sequence[str] | None, chosen: Sequence[int], padded: Sequence[int] = ()
    ) -> None:
        """Notes the columns. Raises InputError if a file before has others: of the same kind, or by their names."""
        named = None if names is None else tuple(names)
        self.columns = found = Columns(self.called or str(self.path), kind, width, named, tuple(chosen), tuple(padded))
        for other in self.before.values():
            comparable = other.kind == kind or None not in (other.names, named)
            if comparable and found.meant() != other.meant():
                raise InputError(f"{found.meant()} here, {other.meant()} in {other.file}", self.path)

    def tell(self, line: str) -> None:
        """Tells the user of a guess; of several files once for those that are alike."""
        alike = re.sub(r"'[^']*'|[0-9.,]+", "", line)
        if alike not in self.told:
            self.told.add(alike)
            logger.warning(f"{self.called or self.path}: {line}")

    def select(
        self, width: int, names: Sequence[str] | None, rows: Sequence[Sequence[str]] = (), counted: bool = False
    ) -> list[int]:
        """The numbers of the columns to read, in the order head, relation (if used), tail. Tells of what is guessed
        and of columns that are left out.

        Args:
            width: the number of columns of the file.
            names: their names, if the file has names.
            rows: the first rows, as texts.
            counted: a first line gives their number, as in OpenKE's files: head, tail, relation.

        Raises:
            InputError: a column is missing, or it is unclear which columns are meant.
        """
        wanted = self.options.columns
        if wanted is not None:
            found = [self._find(column, width, names) for column in wanted]
            if len(set(found)) != len(found):
                raise InputError(f"the same column is named twice: {', '.join(wanted)}", self.path)
        elif names is None and self.like is not None and self.like.width == width:
            found = list(self.like.chosen)
        else:
            found = self._chosen(width, names, rows, counted)
        return found if self.options.relations else [found[0], found[-1]]

    def _chosen(
        self, width: int, names: Sequence[str] | None, rows: Sequence[Sequence[str]], counted: bool
    ) -> list[int]:
        values = [Values(texts) for texts in zip(*rows, strict=True)] if rows else []
        said = _plainly(names) or roles(names) if names else None
        if said is not None:
            choice: Choice | None = self._by_names(said, present(names), values)
        elif counted and width == 3 and values:
            choice = self._of_openke(values)
        elif width == 2 and not values:
            choice = Choice([0, 1], {})
        else:
            others = [number for number, name in enumerate(names or ()) if means_other(name)]
            choice = choose(values, others) if values else Choice([0, 1, 2], {}) if width == 3 else None
        if choice is None:
            shown = names or (rows[0] if rows else ())
            seen = f"; the first line is {', '.join(map(repr, shown[:10]))}" if shown else ""
            how = f"; say which with --columns HEAD,RELATION,TAIL, such as 0,1,2{seen}"
            if width < 2:
                how = (
                    "; say what is between them with --delimiter, such as ' '" if self.path.suffix != ".parquet" else ""
                )
            raise InputError(f"2 or 3 columns are expected, {width} found{how}", self.path)
        titles = [f"column {number}" for number in range(width)] if names is None else [f"'{name}'" for name in names]
        left = [
            f"{titles[number]} ({what})" if what else titles[number] for number, what in sorted(choice.left.items())
        ]
        if left:
            self.tell(f"left out: {', '.join(left)} (--columns)")
        if choice.doubt:
            self.doubtful = True
            meant = ", ".join(titles[number] for number in choice.chosen)
            self.tell(f"{', '.join(column_names(len(choice.chosen)))}: {meant}; {choice.doubt} (--columns)")
        return choice.chosen

    def _by_names(self, said: list[int], names: Sequence[str], values: Sequence[Values]) -> Choice:
        """Head and tail by their names; a third column that may be a relation by its values."""
        left = {number: values[number].is_no_name if values else "" for number in range(len(names))
                if number not in said and names[number]}  # fmt: skip
        if len(said) == 3 and values:
            kind = values[said[1]]
            if kind.is_no_name:
                return Choice([said[0], said[2]], left | {said[1]: kind.is_no_name})
            if names[said[1]].lower() == "label" and kind.integers is not None:
                return Choice(said, left, f"numbers such as {kind.example} may be labels of the edges, not relations")
        if len(said) == 2 and len(names) == 3 and left and values:
            (third,) = left
            if is_relation(names[third], values[third]):
                return Choice([said[0], third, said[1]], {}, "the name of the relation's column is not known")
        return Choice(said, left)

    def _of_openke(self, values: Sequence[Values]) -> Choice:
        counts = [len(each.different) for each in values]
        if counts[1] * 4 <= min(counts[0], counts[2]):
            return Choice([0, 1, 2], {}, "after a line with a number OpenKE writes head, tail, relation")
        sure = "2id" in self.path.name or counts[2] * 4 <= min(counts[:2])
        return Choice([0, 2, 1], {}, "" if sure else "read as OpenKE's file, as its first line is a number")

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
