"""How a text of edges is written, by its first lines: the delimiter, quotes, and which lines are comments.

What is not sure comes with a line for the user, and the option that changes it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.data.reading.edge_names import roles, shape
from marius_oac.errors import InputError

TEXT_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".tab": "\t", ".csv": ","}
"""The usual ones, by suffix."""
OTHER_TEXTS = ("", ".edges", ".edgelist", ".el", ".ncol", ".dat", ".data")
"""Suffixes of texts of edges with any delimiter. Other files may be anything, such as a configuration."""
_MARKS = ("\t", ",", ";", "|", " ")
_LOOKED_AT = 1000  # lines in which delimiters are counted
_ENOUGH = 20  # names whose quotes are doubled, which is no accident
_ALIKE = 100  # lines whose columns are compared
_MOSTLY = 0.9  # of the lines have the usual delimiter in a file with some that are wrong
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL = re.compile(r"(^|;)\s*[+-]?\d+,\d+\s*(;|$)")


@dataclass(frozen=True)
class TextForm:
    """The form of a text.

    Attributes:
        delimiter: between columns.
        runs: several delimiters, blanks or tabs, are one.
        quoted: a field may be quoted.
        comment: lines that begin with it are skipped.
        width: the number of columns.
        counted: the number of edges that the first line gives, as in OpenKE's files, or None.
        marked: how many comments among the first lines have the columns of an edge and are none.
        doubts: what a user is told.
    """

    delimiter: str
    runs: bool = False
    quoted: bool = False
    comment: str = "#"
    width: int = 0
    counted: int | None = None
    marked: int = 0
    doubts: tuple[str, ...] = ()

    def has_edge(self, line: str) -> bool:
        """Whether a line that begins with # has the columns of an edge, and no blank follows the #."""
        return line[1:2] not in ("", " ", "\t") and _width(line, self) == self.width > 1


def unknown_kind(path: Path) -> InputError:
    """The error for a file that is not read."""
    known = ", ".join((*TEXT_DELIMITERS, ".gz of these", ".parquet", ".npy", ".npz", ".pt"))
    return InputError(f"unknown kind of file ({known} are known); a text file's delimiter helps (--delimiter)", path)


def form_of(lines: Sequence[str], options: ReadOptions, usual: str | None) -> TextForm | None:
    """The form of a text with these first lines, comments among them; None if no delimiter is found.

    Args:
        usual: the delimiter for the file's suffix, or None.
    """
    mark = "#" if options.comment is None else options.comment
    data = [line for line in lines if not (mark and line.startswith(mark))]
    data = data or [line for line in lines if line[1:2] not in ("", " ", "\t")] or list(lines)  # tags, perhaps
    if not data:
        return None
    counted = int(data[0]) if len(data) > 1 and re.fullmatch(r"\s*[0-9]{1,18}\s*", data[0]) else None
    if options.delimiter is not None:
        form = TextForm(options.delimiter)
    else:
        found = _delimiter(data[counted is not None :][:_LOOKED_AT], usual)
        if found is None:
            return None
        form = found
    if counted is not None and _width(data[1], form) > 1:
        form = replace(form, counted=counted)
    form = _with_quotes(form, data, options.quotes)
    form = replace(form, width=_width(data[form.counted is not None], form))
    return replace(form, comment=options.comment) if options.comment is not None else _with_comments(form, lines, data)


def _delimiter(lines: Sequence[str], usual: str | None) -> TextForm | None:
    """The usual delimiter, where it is in each line equally often, or in nearly each; else another one that is."""
    bare = [_QUOTED.sub("", line) for line in lines]
    counts = {mark: [line.count(mark) for line in bare] for mark in _MARKS}
    even = [mark for mark in _MARKS if counts[mark][0] and len(set(counts[mark])) == 1]
    there = usual is not None and sum(count > 0 for count in counts[usual]) >= _MOSTLY * len(bare)
    if usual is not None and (usual in even or there) and not (usual == "," and ";" in even):
        return TextForm(usual)
    if "," in even and any(map(_DECIMAL.search, bare)) or usual not in even and ";" in even and usual == ",":
        return TextForm(";") if ";" in even else TextForm(",")
    if not even or even == [" "]:
        words = {len(line.split()) for line in bare}
        if len(words) == 1 and words != {1}:
            return TextForm(" ", runs=any(line.split(" ") != line.split() for line in bare))
        return None if usual is None else TextForm(usual)
    chosen = usual if usual in even else even[0]
    others = [mark for mark in even if mark != chosen]
    if chosen == "\t" or others == [" "] and not any(" " in line.replace(f"{chosen} ", "") for line in bare):
        return TextForm(chosen)
    alike = [mark for mark in even if _has_ends(bare, mark)]
    if len(alike) == 1 or not others:
        return TextForm(alike[0] if others else chosen)
    return TextForm(chosen, doubts=(f"columns are told apart by {chosen!r}, as {others[0]!r} might (--delimiter)",))


def _has_ends(lines: Sequence[str], mark: str) -> bool:
    """Whether this delimiter leaves two columns that are written alike, as the ends of edges are, and no other one."""
    columns = list(zip(*(line.split(mark) for line in lines[:_ALIKE]), strict=True))
    shapes = [frozenset(map(shape, column)) for column in columns]
    return len(set(shapes)) < len(shapes)


def _width(line: str, form: TextForm) -> int:
    return len(line.split()) if form.runs else _QUOTED.sub("", line).count(form.delimiter) + 1


def _with_quotes(form: TextForm, lines: Sequence[str], asked: bool | None) -> TextForm:
    """Whether fields may be quoted: in a CSV; where all are; where lines have equally many columns only if quotes hide
    some delimiters; and where all quotes within names are doubled. Else quotes belong to names."""
    if form.runs and asked:
        raise InputError("names between runs of blanks can't be quoted", "quotes")
    if form.runs or asked is not None or form.delimiter == ",":
        return replace(form, quoted=not form.runs and asked is not False)
    some = [line for line in lines if '"' in line]
    if not some:
        return form
    fields = [field for line in some for field in line.split(form.delimiter) if '"' in field]
    whole = [field for field in fields if is_quoted(field)]
    with suppress(csv.Error):
        rows = list(csv.reader(lines, delimiter=form.delimiter, strict=True))
        even = len(rows) == len(lines) and len({len(row) for row in rows}) == 1 < len(rows[0])
        hidden = len({line.count(form.delimiter) for line in lines}) > 1
        every = len(whole) == sum(map(len, rows)) and len(lines) > 1
        doubled = len(whole) == len(fields) and sum('""' in field[1:-1] for field in whole) >= _ENOUGH
        if even and (hidden or every or doubled):
            return replace(form, quoted=True)
    doubt = f"{len(whole):,} names of the first {len(lines):,} lines keep quotes around them (--quotes takes these off)"
    return replace(form, doubts=(*form.doubts, doubt)) if whole else form


def is_quoted(field: str) -> bool:
    """Whether a field begins and ends with quotes, and has a text between them."""
    return len(field) > 2 and field[0] == field[-1] == '"'


def _with_comments(form: TextForm, lines: Sequence[str], data: Sequence[str]) -> TextForm:
    """Which lines that begin with # are comments. They are edges, as those of hashtags, if they have an edge's columns,
    no blank follows the #, and names elsewhere begin with one, or all lines do."""
    plain = [line for line in data if not line.startswith("#")][form.counted is not None :]
    marked = [line for line in lines if line.startswith("#")]
    alike = [line for line in marked if form.has_edge(line)]
    if not alike:
        return form
    if not plain:
        return replace(form, comment="# ") if len(alike) > 1 else form
    tag = re.compile(f'{re.escape(form.delimiter)} *"?#')
    if any(map(tag.search, (*plain, *alike))):
        return replace(form, comment="# ")
    form = replace(form, marked=len(alike))
    fields = [field.strip() for field in alike[0][1:].split(form.delimiter)]
    first = next(line for line in lines if line)
    if len(alike) == 1 and (roles(fields) is not None or not any(map(str.isdecimal, fields)) and first == alike[0]
                            and all(line.split(form.delimiter)[0].strip().isdecimal() for line in plain)):  # fmt: skip
        return form
    said = f"{len(alike):,} of the first {len(lines):,} lines begin with # and have the columns of an edge"
    if all(line.split(form.delimiter)[0].strip().isdecimal() for line in plain):
        return replace(form, doubts=(*form.doubts, f"{said}: skipped as comments (--comment '')"))
    return replace(form, comment="# ", marked=0, doubts=(*form.doubts, f"{said}: read as edges (--comment '#')"))
