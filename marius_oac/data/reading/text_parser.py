"""Parses blocks of a text of edges. Arrow's CSV parser gets whole lines. A block that it refuses is read again line by
line, which finds the faulty one: the parser doesn't know it because it works on chunks in parallel.

The first lines tell how the text is written (`text_form`) and what its columns are (`edge_file`). Names may be quoted
(RFC 4180), but not across lines.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from marius_oac.data.reading.edge_file import EdgeFile, column_names
from marius_oac.data.reading.edge_names import header, same_words
from marius_oac.data.reading.edge_values import INTEGER
from marius_oac.data.reading.text_form import TextForm, form_of, unknown_kind
from marius_oac.errors import InputError
from marius_oac.types import present

_PARSED_BYTES = 1 << 20  # at once; Arrow takes no line that is longer
_LOOKED_AT = 1 << 14  # first lines, which tell the form and the columns
_COMPARED = 100  # lines of a part of a cut file, which are compared with its first one
_WHOLE = re.compile(r"\s*[+-]?\d+\.0*\s*")  # an id as pandas writes it if some are missing


def _has_newline(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.match_substring(column, "\n")


class Parser:
    """Parses blocks of one file. Its first lines decide the form and the columns."""

    def __init__(self, file: EdgeFile, usual: str | None) -> None:
        self.file, self.usual, self.rows = file, usual, 0
        self.form: TextForm | None = None
        self.width: int | None = None
        self.chosen: list[int] = []
        self.titles: list[str] = []  # what an error calls each column
        self.whole: list[int] = []  # chosen columns of ids that are written with .0
        self.counts: int | None = None  # the second of two numbers in the first line
        self.marked = 0  # comments that look like edges
        self.padded: list[int] = []  # those before each of whose names a blank follows the delimiter

    def parse(self, first_line: int, block: bytes) -> Iterator[pa.RecordBatch]:
        if b"\0" in block:
            line = first_line + block[: block.index(b"\0")].count(b"\n")
            raise InputError("a zero byte: this is a binary file, not text", f"{self.file.path}:{line}")
        if self.width is None:
            self._settle_form(first_line, block)
        if self.form is None:
            return
        if self.form.runs:
            block = re.sub(rb"[ \t]+", b" ", re.sub(rb"[ \t]*(\r?\n)[ \t]*", rb"\1", block.lstrip(b" \t")))
        body = self._without_comments(block)
        if self.width is None:
            body = self._settle_columns(first_line, block, body)
        if body[:1] in (b"", b"\r", b"\n") and not body.strip(b"\r\n"):
            return
        try:
            # Whether a byte occurs at all is known in a tenth of the time that counting takes.
            if b"\r" in body and body.count(b"\r") != body.count(b"\r\n"):
                raise pa.ArrowInvalid("a carriage return inside a line")
            table = self._arrow(body)
            if any(pc.min(pc.binary_length(column)).as_py() == 0 for column in table.columns):
                raise pa.ArrowInvalid("an empty name")
            quoted = self.form.quoted and b'"' in body
            if quoted and any(pc.any(_has_newline(column)).as_py() for column in table.columns):
                raise pa.ArrowInvalid("a name spans lines")
        except pa.ArrowInvalid as error:
            self._blame(first_line, block)
            raise InputError(str(error), f"{self.file.path}:{first_line}") from None
        self.rows += len(table)
        yield from table.to_batches()

    def tell(self) -> None:
        """Tells what was found after the first lines."""
        form = self.form
        if form is None:
            return
        if self.file.options.comment is None and self.marked > form.marked:
            what = f"{self.marked:,} lines begin with # and have the columns of an edge"
            self.file.tell(f"{what}: skipped as comments (--comment '')")
        if self.counts is not None and self.counts == self.rows - 1:
            self.file.tell("its first line may give the numbers of nodes and edges, and is read as an edge")
        if form.counted is not None and form.counted != self.rows:
            self.file.tell(f"its first line says {form.counted:,} edges, and it has {self.rows:,}")

    def _arrow(self, body: bytes) -> pa.Table:
        form = present(self.form)
        names = [str(index) for index in range(present(self.width))]
        wanted = [str(index) for index in self.chosen]
        table = pa_csv.read_csv(
            pa.py_buffer(body),
            pa_csv.ReadOptions(column_names=names, block_size=_PARSED_BYTES),
            pa_csv.ParseOptions(delimiter=form.delimiter, quote_char='"' if form.quoted else False),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=wanted,
                strings_can_be_null=False,
            ),
        )
        table = table.rename_columns(column_names(len(wanted)))
        for index, name in enumerate(table.column_names):
            if index in self.padded:
                table = table.set_column(index, name, pc.utf8_ltrim(table.column(index), " "))
            if index in self.whole:
                ids = pc.replace_substring_regex(table.column(index), r"^([+-]?\d+)\.0*$", r"\1")
                table = table.set_column(index, name, ids)
        return table

    def _without_comments(self, block: bytes) -> bytes:
        form = present(self.form)
        mark = form.comment.encode()
        if not mark or mark not in block or not (block.startswith(mark) or b"\n" + mark in block):
            return block
        lines = block.split(b"\n")
        kept = [line for line in lines if not line.startswith(mark)]
        self.file.comment_lines += len(lines) - len(kept)
        if mark == b"#":
            comments = (line.decode("utf-8", "replace") for line in lines if line.startswith(mark))
            self.marked += sum(map(form.has_edge, comments))
        return b"\n".join(kept)

    def _settle_form(self, first_line: int, block: bytes) -> None:
        """Finds how the text is written by its first lines, unless it has nothing but comments there."""
        looked_at = _COMPARED if "text" in self.file.before else _LOOKED_AT
        asked = self.file.options.comment
        mark, lines, plain, seen, whole = "#" if asked is None else asked, list[str](), 0, 0, False
        with suppress(UnicodeDecodeError):
            for _, line in self._lines(first_line, block, ""):
                text, seen = line.decode(), seen + 1
                marked = bool(mark) and text.startswith(mark)
                if not marked or len(lines) < looked_at:
                    lines.append(text)
                plain += not marked
                if plain == looked_at:
                    break
            else:
                whole = True
        if lines and all(line.startswith("{") and line.endswith("}") for line in lines):
            raise InputError("its lines are objects of JSON: write them as a CSV", self.file.path)
        form = form_of(lines, self.file.options, self.usual)
        if form is None and (lines or block.strip(b"\r\n")):
            if lines or self.usual is None:
                raise unknown_kind(self.file.path)
            form = TextForm(self.usual, quoted=self.usual == ",", comment=mark)
        if form is not None and lines and whole and not plain and form.comment == mark:
            self.file.comment_lines += seen
            form = None
        self.form = form

    def _settle_columns(self, first_line: int, block: bytes, body: bytes) -> bytes:
        """Finds the width and the columns in the first line of data. Returns the body without its header."""
        form, before = present(self.form), self.file.before.get("text")
        looked_at = _COMPARED if before else _LOOKED_AT
        lines = list(islice(self._lines(first_line, block), 2 + looked_at))
        if form.counted is not None:
            lines, body = lines[1:], self._behind_first(body)
        if not lines:
            return body
        fields, where = [each.strip(" ") for each in self._fields(*lines[0])], f"{self.file.path}:{lines[0][0]}"
        rows = self._first_fields(lines)
        sure = True
        if before is None:
            self.file.first_lines = rows
            named, sure = self._has_header(lines, rows)
            self.width = len(fields)
            names = fields if named else None
            even = [row for row in rows[named:] if len(row) == self.width]
            self.chosen = self.file.select(self.width, names, even, form.counted is not None)
            pair = not named and len(fields) == 2 and all(re.fullmatch("[0-9]{1,18}", field) for field in fields)
            self.counts = int(fields[1]) if pair else None
        else:  # a line with other fields is blamed below
            names = None if before.names is None else list(before.names)
            self.chosen, self.width = list(before.chosen), before.width
            named = fields == names
            alike = names is not None and len(lines) == 1 and same_words(fields, names)
            if not named and (alike or self._has_header(lines, rows)[0]):
                other = f"other than those of {before.file}" if names else f"where {before.file} has none"
                raise InputError(f"column names {other}, or an edge (--no-header)", where)
        even = [row for row in rows[named:] if len(row) == self.width]
        self._find_whole(even)
        self._find_blanks(even, before.padded if before else ())
        self.file.settle("text", self.width, names, self.chosen, self.padded)
        numbered = [f"{index} (counted from 0)" for index in range(self.width)]
        self.titles = numbered if names is None else [repr(name) for name in names]
        for doubt in form.doubts:
            self.file.tell(doubt)
        if not sure and named:
            meant = ", ".join(repr(fields[index]) for index in self.chosen)
            kinds = ", ".join(column_names(len(self.chosen)))
            self.file.tell(f"line {lines[0][0]} holds column names, not an edge; {kinds}: {meant} (--no-header)")
        elif not sure:
            self.file.tell(f"line {lines[0][0]} is read as an edge, and may hold column names (--header)")
        return self._behind_first(body) if named else body

    def _behind_first(self, body: bytes) -> bytes:
        """What follows the first line that is not blank."""
        return body[body.index(b"\n", len(body) - len(body.lstrip(b"\r\n"))) + 1 :]

    def _find_whole(self, rows: list[list[str]]) -> None:
        """Finds columns of ids that are written as 1.0, where NaN made floats of them, and tells of it."""
        for place, index in enumerate(self.chosen):
            texts = [row[index].strip() for row in rows]
            point = next((text for text in texts if "." in text), None)
            if point is not None and all(INTEGER.fullmatch(text) or _WHOLE.fullmatch(text) for text in texts):
                self.whole.append(place)
                self.file.tell(f"ids of column {index} are written as {point} and read as {point.partition('.')[0]}")

    def _find_blanks(self, rows: list[list[str]], known: Collection[int]) -> None:
        """Finds columns with a blank behind each delimiter, which belongs to it. Others belong to names, and are told
        of where there is a name without them. One row tells nothing but of columns that are `known` to be so."""
        if self.file.options.columns is None and present(self.form).delimiter != "\t":
            self.padded = [place for place, index in enumerate(self.chosen)
                           if index and (len(rows) > 1 or place in known)
                           and all(row[index].startswith(" ") for row in rows)]  # fmt: skip
        ends = {0, len(self.chosen) - 1} - {*self.padded}
        names = {row[self.chosen[place]] for place in ends for row in rows}
        odd = min((name for name in names if name != name.strip(" ") and name.strip(" ") in names), default=None)
        if odd is not None:
            self.file.tell(f"names keep blanks around them: {odd!r} is another one than {odd.strip(' ')!r}")

    def _has_header(self, lines: list[tuple[int, bytes]], rows: list[list[str]]) -> tuple[bool, bool]:
        """Whether the first of some numbered lines holds column names, and whether that is sure."""
        asked, columns = self.file.options.header, self.file.options.columns
        if asked is not None:
            return asked, True
        first = self._fields(*lines[0])
        if columns and any(name in first and not name.isdecimal() for name in columns):
            return True, True
        return header(first, rows[1:], self.file.one_of_several)

    def _first_fields(self, lines: list[tuple[int, bytes]]) -> list[list[str]]:
        """The fields of these lines, up to the first that is wrong, which raises when it is parsed."""
        found = []
        with suppress(InputError):
            for line in lines:
                found.append(self._fields(*line))
        return found

    def _lines(self, first_line: int, block: bytes, comment: str | None = None) -> Iterator[tuple[int, bytes]]:
        """Yields the block's lines with their numbers, except blank lines and comments. `comment`: what begins these;
        None: as the form says."""
        mark = (present(self.form).comment if comment is None else comment).encode()
        start, number = 0, first_line
        while start < len(block):  # not all split at once: often only the first lines are asked for
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            line = block[start:end].removesuffix(b"\r")
            if line and not (mark and line.startswith(mark)):
                yield number, line
            start, number = end + 1, number + 1

    def _fields(self, number: int, line: bytes) -> list[str]:
        where = f"{self.file.path}:{number}"
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"byte {line[error.start]:#04x} at position {error.start + 1} is not UTF-8", where
            ) from None
        if "\r" in text:
            raise InputError("a carriage return inside the line", where)
        form = present(self.form)
        if not form.quoted:
            return text.split(form.delimiter)
        try:
            return next(csv.reader([text], delimiter=form.delimiter, strict=True))
        except csv.Error as error:
            raise InputError(f"the quotes don't match ({error}); a name can't span lines", where) from None

    def _blame(self, first_line: int, block: bytes) -> None:
        """Raises InputError with the first line of the block that is wrong."""
        longest, longest_line = 0, first_line
        for number, line in self._lines(first_line, block):
            fields = self._fields(number, line)
            longest, longest_line = max((longest, longest_line), (len(line), number))
            where = f"{self.file.path}:{number}"
            if len(fields) != self.width:
                raise InputError(f"{self.width} columns are expected, {len(fields)} found", where)
            for place, index in enumerate(self.chosen):
                if not (fields[index].lstrip(" ") if place in self.padded else fields[index]):
                    raise InputError(f"the name in column {self.titles[index]} is empty", where)
        if longest > _PARSED_BYTES:
            what = f"the line is {longest:,} bytes long, and more than {_PARSED_BYTES >> 20} MiB"
            raise InputError(f"{what} are no names of nodes", f"{self.file.path}:{longest_line}")
