"""Reads text files of edges: Arrow's CSV parser gets blocks of whole lines. A block that it refuses is read again line
by line.

The second pass finds the faulty line, which the parser doesn't know because it works on chunks in parallel. A TSV has
no quoting. A CSV may quote names (RFC 4180), but not across lines.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedIOBase
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from marius_oac.data.prepare.edge_file import EdgeFile, column_names, hold_names, same_words
from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.types import present

BLOCK_BYTES = 16 << 20
_PARSED_BYTES = 1 << 20  # at once; Arrow takes no line that is longer
_LOOKED_AT = 100  # lines that are compared with the first to decide whether it is a header
_BOM = b"\xef\xbb\xbf"


def read_text(file: EdgeFile, delimiter: str) -> Iterator[pa.RecordBatch]:
    """Yields the file's edges as batches of strings. Raises InputError as `readers.read_edges`."""
    parser = _Parser(file, delimiter)
    for first_line, block in _blocks(file.path):
        yield from parser.parse(first_line, block)
    file.check_rows(parser.rows)


def open_maybe_compressed(path: Path) -> BufferedIOBase:
    """Opens a file for reading, decompressed if the name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")


def read_pieces(path: Path, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yields the file's bytes, decompressed, `size` at a time.

    Raises:
        InputError: the compressed file is truncated or damaged, or the disk fails.
    """
    done = 0
    try:
        with open_maybe_compressed(path) as stream:
            while piece := stream.read(size):
                yield piece
                done += len(piece)
    except EOFError:
        raise InputError(f"the compressed file is truncated (after {done:,} bytes of text)", path) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"not a gzip file, or a damaged one: {error}", path) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", path) from None


def line_of_row(path: Path, row: int) -> int:
    """The line, from 1, of row number `row`, from 0, of a file with a header and no comments."""
    for first_line, block in _blocks(path):
        for number, line in enumerate(block.split(b"\n"), first_line):
            if line.removesuffix(b"\r"):
                row -= 1
            if row < -1:
                return number
    raise InputError("was changed while it was read", path)


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (number of the first line, whole lines). The last line gets a line break if it has none."""
    line, rest = 1, b""
    for piece in read_pieces(path, BLOCK_BYTES):
        if line == 1 and not rest:
            if piece.startswith(b"\x1f\x8b"):
                raise InputError("the file is compressed with gzip, but its name doesn't end in .gz", path)
            piece = piece.removeprefix(_BOM)
        end = piece.rfind(b"\n") + 1
        if end:
            block, rest = rest + piece[:end], piece[end:]
            yield line, block
            line += block.count(b"\n")
        else:
            rest += piece
        if len(rest) > BLOCK_BYTES:
            raise InputError(f"no line ends within {BLOCK_BYTES >> 20} MiB: not a text file", f"{path}:{line}")
    if rest:
        yield line, rest + b"\n"


def _has_newline(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.match_substring(column, "\n")


class _Parser:
    """Parses blocks of one file. The first line that isn't blank or a comment decides the columns."""

    def __init__(self, file: EdgeFile, delimiter: str) -> None:
        self.file, self.delimiter, self.rows = file, delimiter, 0
        self.comment = file.options.comment.encode()
        self.quoted = delimiter == ","
        self.width: int | None = None
        self.chosen: list[int] = []
        self.titles: list[str] = []  # what an error calls each column

    def parse(self, first_line: int, block: bytes) -> Iterator[pa.RecordBatch]:
        if b"\0" in block:
            line = first_line + block[: block.index(b"\0")].count(b"\n")
            raise InputError("a zero byte: this is a binary file, not text", f"{self.file.path}:{line}")
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
            if self.quoted and b'"' in body and any(pc.any(_has_newline(column)).as_py() for column in table.columns):
                raise pa.ArrowInvalid("a name spans lines")
        except pa.ArrowInvalid as error:
            self._blame(first_line, block)
            raise InputError(str(error), f"{self.file.path}:{first_line}") from None
        self.rows += len(table)
        yield from table.to_batches()

    def _arrow(self, body: bytes) -> pa.Table:
        names = [str(index) for index in range(present(self.width))]
        wanted = [str(index) for index in self.chosen]
        table = pa_csv.read_csv(
            pa.py_buffer(body),
            pa_csv.ReadOptions(column_names=names, block_size=_PARSED_BYTES),
            pa_csv.ParseOptions(delimiter=self.delimiter, quote_char='"' if self.quoted else False),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=wanted,
                strings_can_be_null=False,
            ),
        )
        return table.rename_columns(column_names(len(wanted)))

    def _without_comments(self, block: bytes) -> bytes:
        mark = self.comment
        if not mark or mark not in block or not (block.startswith(mark) or b"\n" + mark in block):
            return block
        lines = block.split(b"\n")
        kept = [line for line in lines if not line.startswith(mark)]
        self.file.comment_lines += len(lines) - len(kept)
        return b"\n".join(kept)

    def _settle_columns(self, first_line: int, block: bytes, body: bytes) -> bytes:
        """Finds the width and the columns in the first line of data. Returns the body without its header."""
        lines = list(islice(self._lines(first_line, block), 1 + _LOOKED_AT))
        if not lines:
            return body
        fields, before, where = self._fields(*lines[0]), self.file.before.get("text"), f"{self.file.path}:{lines[0][0]}"
        if before is None:
            self.file.first_lines = self._first_fields(lines)
            header, self.width = self._has_header(lines), len(fields)
            names = fields if header else None
            self.chosen = self.file.select(self.width, names, fields)
        else:  # a line with other fields is blamed below
            names = None if before.names is None else list(before.names)
            self.chosen, self.width = list(before.chosen), before.width
            header = fields == names
            alike = names is not None and len(lines) == 1 and same_words(fields, names)
            if not header and (alike or self._has_header(lines)):
                other = f"other than those of {before.file}" if names else f"where {before.file} has none"
                raise InputError(f"column names {other}, or an edge (--no-header)", where)
        self.file.settle("text", self.width, names, self.chosen)
        numbered = [f"{index} (counted from 0)" for index in range(self.width)]
        self.titles = numbered if names is None else [repr(name) for name in names]
        if header:
            start = len(body) - len(body.lstrip(b"\r\n"))
            body = body[body.index(b"\n", start) + 1 :]
            if self.file.options.header is None and before is None:
                meant = ", ".join(repr(fields[index]) for index in self.chosen)
                kinds = ", ".join(column_names(len(self.chosen)))
                at = f"{self.file.called or self.file.path}:{lines[0][0]}"
                logger.warning(f"{at}: column names, not an edge; {kinds}: {meant} (--no-header)")
        return body

    def _has_header(self, lines: list[tuple[int, bytes]]) -> bool:
        """Whether the first of some numbered lines holds column names."""
        asked, columns = self.file.options.header, self.file.options.columns
        if asked is not None:
            return asked
        first = self._fields(*lines[0])
        if columns and any(name in first and not name.isdecimal() for name in columns):
            return True
        return hold_names(first, self._first_fields(lines)[1:], self.file.one_of_several)

    def _first_fields(self, lines: list[tuple[int, bytes]]) -> list[list[str]]:
        """The fields of these lines, up to the first that is wrong, which raises when it is parsed."""
        found = []
        with suppress(InputError):
            for line in lines:
                found.append(self._fields(*line))
        return found

    def _lines(self, first_line: int, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the block's lines with their numbers, except blank lines and comments."""
        start, number = 0, first_line
        while start < len(block):  # not all split at once: often only the first lines are asked for
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            line = block[start:end].removesuffix(b"\r")
            if line and not (self.comment and line.startswith(self.comment)):
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
        if not self.quoted:
            return text.split(self.delimiter)
        try:
            return next(csv.reader([text], delimiter=self.delimiter, strict=True))
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
            for index in self.chosen:
                if not fields[index]:
                    raise InputError(f"the name in column {self.titles[index]} is empty", where)
        if longest > _PARSED_BYTES:
            what = f"the line is {longest:,} bytes long, and more than {_PARSED_BYTES >> 20} MiB"
            raise InputError(f"{what} are no names of nodes", f"{self.file.path}:{longest_line}")
