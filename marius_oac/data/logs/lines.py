"""The rows of a text are its lines that aren't blank. They are found without parsing, so that parsers get only the
wanted rows.

Guarantees: the file is read once, in order. Memory holds the lines of one block and the piece that is being read.
"""

from __future__ import annotations

import itertools
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from marius_oac.data.logs.fingerprints import count_lines
from marius_oac.data.logs.pieces import PIECE_BYTES, Pieces
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.runtime.progress import Progress

TEXT_BYTES = PIECE_BYTES  # bytes of text that are read, and parsed, at once
MOST_LINE_BYTES = TEXT_BYTES
"""The longest line: it must fit what is parsed at once."""
MOST_BLOCK_BYTES = 2 << 30
"""The largest size of a block's lines, which are in memory at once."""
_FIRST_LINE_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
"""By the last suffix of a text's name."""
_BEGINNINGS = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ": ".xz"}
SPANS = (
    "a quoted value spans lines, which only Parquet can hold (duckdb -c \"COPY (FROM 'FILE.csv') TO 'FILE.parquet'\")"
)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STRIDE = 32  # bytes that are compared at once


@dataclass(frozen=True)
class Lines:
    """Consecutive rows of a text.

    Attributes:
        first: the number of the first row in the file, from 0.
        text: uint8, whole lines, including blank ones.
        starts: int64 [n + 1]: row i is text[starts[i]:starts[i + 1]], with its line break and blank lines after it.
    """

    first: int
    text: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return self.starts.size - 1

    def pick(self, rows: np.ndarray) -> np.ndarray:
        """The lines, uint8, of the rows with these indices, int64 [k], ascending, k >= 1: a view if without gaps."""
        if rows[-1] - rows[0] == rows.size - 1:
            return self.text[self.starts[rows[0]] : self.starts[rows[-1] + 1]]
        out = np.empty((self.starts[rows + 1] - self.starts[rows]).sum(), np.uint8)
        _copy_rows(self.text, self.starts, rows, out)
        return out


def blocks_of_lines(path: Path, first: int, rows: int, pieces: Pieces | None = None) -> Iterator[Lines]:
    """Yields blocks of so many rows from row `first` on; the last may be shorter. Earlier rows are skipped.

    Raises:
        InputError: the file can't be read, a line or a block is too large, or the contents differ from `pieces`.
    """
    # The skipped rows form blocks too, the first of which may be shorter.
    done, wanted = 0, first % rows or rows
    starts, found, inside = np.empty(rows + 1, np.int64), 0, False
    held: list[np.ndarray] = []  # the block's text as far as it was read, `size` bytes
    size = 0
    for piece in _pieces(path, pieces):
        rest = np.frombuffer(piece, np.uint8)
        while True:
            count, inside = _row_starts(rest, inside, starts[found : wanted + 1])
            starts[found : found + count] += size
            found += count
            if found <= wanted:
                break
            end = int(starts[wanted]) - size
            held.append(rest[:end])
            if done >= first:
                yield Lines(done, _joined(held), starts[: wanted + 1].copy())
            # The row found beyond the block is the first of the next block.
            done, wanted, held, size, rest = done + wanted, rows, [], 0, rest[end:]
            found, starts[0], inside = 0, 0, False
        held.append(rest)
        size += rest.size
        if size > MOST_BLOCK_BYTES:
            what = f"{MOST_BLOCK_BYTES >> 30} GiB and more in rows {done + 1:,} to {done + found:,}"
            raise InputError(f"{what}: {wanted:,} rows are taken at once (data.shuffle, training.batch_size)", path)
    if found and done >= first:
        starts[found] = size + inside
        held.append(np.frombuffer(b"\n" if inside else b"", np.uint8))
        yield Lines(done, _joined(held), starts[: found + 1].copy())


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def count_rows(path: Path, pieces: Pieces | None = None) -> int:
    """The number of rows of the file, including a header.

    Raises:
        InputError: the file can't be read, a line is too long, or the contents differ from `pieces`.
    """
    rows, inside = 0, False
    with Progress(f"counting the examples of {path.name}", "B") as progress:
        for piece in _pieces(path, pieces):
            lines, inside = count_lines(np.frombuffer(piece, np.uint8), inside)
            rows += lines
            progress.add(len(piece))
    return rows + inside


def read_first_line(path: Path) -> bytes:
    """The file's first line without its line break and byte order mark.

    Raises:
        InputError: the file can't be read, the line is blank or too long, or the file is compressed or Parquet although
            its name doesn't say so.
    """
    try:
        with _open_text(path) as stream:
            head = stream.read(_FIRST_LINE_BYTES)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise _read_error(error, path) from None
    suffix = next((suffix for begin, suffix in _BEGINNINGS.items() if head.startswith(begin)), None)
    if suffix is not None:
        raise InputError(
            f"the file is compressed with {COMPRESSIONS[suffix]}, but its name doesn't end in {suffix}", path
        )
    if head.startswith(b"PAR1"):
        raise InputError("this is a Parquet file, but its name or data.format says it is text", path)
    line = re.split(rb"[\r\n]", head.removeprefix(BYTE_ORDER_MARK), maxsplit=1)[0]
    if len(line) + len(BYTE_ORDER_MARK) >= _FIRST_LINE_BYTES:
        raise InputError(f"the first line is longer than {_FIRST_LINE_BYTES >> 20} MiB", path)
    if not line:
        raise InputError("the first line is blank" if head else "the file has no examples", path)
    return line


def _open_text(path: Path) -> IO[bytes]:
    """Opens the file's text, decompressed if its suffix says that it is compressed."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression == "xz":
        return lzma.open(path)
    opened: IO[bytes] = pa.input_stream(str(path), compression=compression)
    return opened


def create_text(path: Path) -> Any:
    """Opens a new file to write text to, compressed as its suffix says."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    return lzma.open(path, "wb") if compression == "xz" else pa.output_stream(str(path), compression=compression)


def _read_error(error: Exception, path: Path) -> InputError:
    """The error to raise for a file that can't be read."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    if "Truncated compressed" in str(error) or isinstance(error, EOFError):
        return InputError("the compressed file is truncated", path)
    if compression and not getattr(error, "strerror", None):
        return InputError(f"not a {compression} file, or a damaged one: {error}", path)
    return InputError(f"can't be read: {getattr(error, 'strerror', None) or error}", path)


def _pieces(path: Path, pieces: Pieces | None) -> Iterator[bytes]:
    """Yields the file's text without a byte order mark.

    Raises:
        InputError: the file can't be read, its contents differ from `pieces`, or a line is longer than
            `MOST_LINE_BYTES`.
    """
    numbers = itertools.count()
    mark, begin, open_bytes = BYTE_ORDER_MARK, 0, 0  # the piece's offset, and the bytes of its first line before it
    try:
        with _open_text(path) as stream:
            while piece := stream.read(TEXT_BYTES):
                if pieces:
                    what = f"what begins at byte {begin:,} of its text"
                    pieces.check(next(numbers), (piece,), what)
                first, last = _line_ends(piece)
                if open_bytes + (len(piece) if first < 0 else first) > MOST_LINE_BYTES:
                    first = begin - open_bytes
                    which = f"line {_line_at(path, first):,}, which begins at byte {first:,} of the text,"
                    raise InputError(f"{which} is longer than {MOST_LINE_BYTES >> 20} MiB", path)
                open_bytes = open_bytes + len(piece) if last < 0 else len(piece) - last - 1
                begin += len(piece)
                yield piece.removeprefix(mark)
                mark = b""
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise _read_error(error, path) from None


def line_of_row(path: Path, row: int) -> int:
    """The number, from 1, of the line of a row, from 0, counting a header as a row; 0: there is no such row.

    Raises:
        InputError: the file can't be read.
    """
    line, last, begun, inside = 1, b"", 0, False
    for piece in _pieces(path, None):
        data = np.frombuffer(piece, np.uint8)
        ended, open_there = count_lines(data, inside)
        found = ended + open_there - inside  # rows that begin here
        if begun + found > row:
            starts = np.empty(row - begun + 1, np.int64)
            _row_starts(data, inside, starts)
            return line + _line_ends_between(last, piece[: starts[-1]])
        line += _line_ends_between(last, piece)
        begun, inside, last = begun + found, open_there, piece[-1:]
    return 0


def _line_ends_between(last: bytes, text: bytes) -> int:
    """How many lines end in a text that follows the byte `last`. A line break may be split between the two."""
    joined = last + text
    return _num_ends(joined) - _num_ends(last)


def _num_ends(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def _line_at(path: Path, offset: int) -> int:
    """The number, from 1, of the line that begins at this offset in the text."""
    lines, last = 1, b""
    with _open_text(path) as stream:
        while offset and (piece := stream.read(min(offset, TEXT_BYTES))):
            lines += _line_ends_between(last, piece)
            last, offset = piece[-1:], offset - len(piece)
    return lines


def _line_ends(piece: bytes) -> tuple[int, int]:
    """The positions of the first and the last line break; -1: there is none."""
    ends = [piece.find(end) for end in (b"\n", b"\r")]
    return min((end for end in ends if end >= 0), default=-1), max(piece.rfind(b"\n"), piece.rfind(b"\r"))


@compiled
def _row_starts(data: np.ndarray, inside: bool, starts: np.ndarray) -> tuple[int, bool]:
    """Writes the positions of up to m rows' starts to `starts`, int64 [m]. Returns how many it found, and whether it
    stopped within a row."""
    found, i, size = 0, 0, data.size
    while i < size and found < starts.size:
        if inside:
            while i + _STRIDE <= size:
                ends = 0
                for byte in data[i : i + _STRIDE]:  # no branch, so that LLVM vectorises the loop
                    ends += (byte == 10) | (byte == 13)
                if ends:
                    break
                i += _STRIDE
            while i < size and data[i] != 10 and data[i] != 13:
                i += 1
            inside = i == size
        while i < size and (data[i] == 10 or data[i] == 13):
            i += 1
        if i < size and not inside:
            starts[found] = i
            found += 1
            inside = True
    return found, inside


@compiled
def _copy_rows(text: np.ndarray, starts: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    at = 0
    for row in rows:
        for i in range(starts[row], starts[row + 1]):
            out[at] = text[i]
            at += 1
