"""The rows of a text: its lines but for blank ones, found without being parsed, so that parsers get only those wanted.

Guarantees: the file is read once, in order; in memory are the lines of one block and the piece that is being read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from marius_oac.data.logs.fingerprints import count_lines
from marius_oac.data.logs.pieces import PIECE_BYTES, Pieces
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.runtime.progress import Progress

TEXT_BYTES = PIECE_BYTES  # of text read, and parsed, at once
MOST_LINE_BYTES = TEXT_BYTES
"""Of a line: what is parsed at once."""
MOST_BLOCK_BYTES = 2 << 30
"""Of the lines of a block, which are in memory at once."""
_FIRST_LINE_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STRIDE = 32  # bytes that are looked at together


@dataclass(frozen=True)
class Lines:
    """Consecutive rows of a text.

    Attributes:
        first: number of the first one in the file, from 0.
        text: uint8, whole lines, blank ones among them.
        starts: int64 [n + 1]: row i is text[starts[i]:starts[i + 1]], its line break and blank lines with it.
    """

    first: int
    text: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return self.starts.size - 1

    def pick(self, rows: np.ndarray) -> np.ndarray:
        """The lines of some rows, int64 [k] in ascending order, k >= 1; copied only where there are gaps."""
        if rows[-1] - rows[0] == rows.size - 1:
            return self.text[self.starts[rows[0]] : self.starts[rows[-1] + 1]]
        out = np.empty((self.starts[rows + 1] - self.starts[rows]).sum(), np.uint8)
        _copy_rows(self.text, self.starts, rows, out)
        return out


def blocks_of_lines(path: Path, first: int, rows: int, pieces: Pieces | None = None) -> Iterator[Lines]:
    """Blocks of so many rows from row `first` on, the last one of what is left; what comes before is passed over.

    Raises:
        InputError: the file can't be read, or is not what `pieces` say.
    """
    # What is passed over comes in blocks too, the first of which is shorter.
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
            # The row that was found beyond the block is the next one's first.
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
    """How many rows the file has, a header among them.

    Raises:
        InputError: it can't be read, or is not what `pieces` say.
    """
    rows, inside = 0, False
    with Progress(f"counting the examples of {path.name}", "B") as progress:
        for piece in _pieces(path, pieces):
            lines, inside = count_lines(np.frombuffer(piece, np.uint8), inside)
            rows += lines
            progress.add(len(piece))
    return rows + inside


def read_first_line(path: Path) -> bytes:
    """The file's first line without its end or a byte order mark.

    Raises:
        InputError: it can't be read, is blank, or is compressed without saying so in its name.
    """
    try:
        with _open_text(path) as stream:
            head = stream.read(_FIRST_LINE_BYTES)
    except OSError as error:
        raise _read_error(error, path) from None
    if head.startswith(b"\x1f\x8b"):
        raise InputError("the file is compressed with gzip, but its name doesn't end in .gz", path)
    if head.startswith(b"PAR1"):
        raise InputError("this is a Parquet file, but its name or data.format says it is text", path)
    line = re.split(rb"[\r\n]", head.removeprefix(BYTE_ORDER_MARK), maxsplit=1)[0]
    if len(line) + len(BYTE_ORDER_MARK) >= _FIRST_LINE_BYTES:
        raise InputError(f"the first line is longer than {_FIRST_LINE_BYTES >> 20} MiB", path)
    if not line:
        raise InputError("the first line is blank" if head else "the file has no examples", path)
    return line


def _open_text(path: Path) -> BinaryIO:
    """A stream of the file's text, decompressed where the name ends in .gz."""
    return pa.input_stream(str(path), compression="gzip" if path.suffix.lower() == ".gz" else None)


def _read_error(error: OSError, path: Path) -> InputError:
    """What a reader says of a file it can't read on."""
    if "Truncated compressed" in str(error):
        return InputError("the compressed file is truncated", path)
    if "inflate" in str(error):
        return InputError(f"not a gzip file, or a damaged one: {error}", path)
    return InputError(f"can't be read: {error.strerror or error}", path)


def _pieces(path: Path, pieces: Pieces | None) -> Iterator[bytes]:
    """The file's text without a byte order mark.

    Raises:
        InputError: it can't be read, is not what `pieces` say, or a line is longer than `MOST_LINE_BYTES`.
    """
    numbers = itertools.count()
    mark, begin, open_bytes = BYTE_ORDER_MARK, 0, 0  # where the piece begins, and how much of a line came before it
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
    except OSError as error:
        raise _read_error(error, path) from None


def line_of_row(path: Path, row: int) -> int:
    """The number, from 1, of the line in which a row stands, from 0, a header among them; 0: there is no such row.

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
    """How many lines end in a text that comes after the byte `last`; an end may be cut in two."""
    joined = last + text
    return _num_ends(joined) - _num_ends(last)


def _num_ends(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def _line_at(path: Path, offset: int) -> int:
    """The number, from 1, of the line that begins at a byte of the text."""
    lines, last = 1, b""
    with _open_text(path) as stream:
        while offset and (piece := stream.read(min(offset, TEXT_BYTES))):
            lines += _line_ends_between(last, piece)
            last, offset = piece[-1:], offset - len(piece)
    return lines


def _line_ends(piece: bytes) -> tuple[int, int]:
    """Where the first and the last line end; -1: none does."""
    ends = [piece.find(end) for end in (b"\n", b"\r")]
    return min((end for end in ends if end >= 0), default=-1), max(piece.rfind(b"\n"), piece.rfind(b"\r"))


@compiled
def _row_starts(data, inside, starts):
    """Notes where rows begin, int64 [m], until m have: how many did, and whether a row is open where it stopped."""
    found, i, size = 0, 0, data.size
    while i < size and found < starts.size:
        if inside:
            while i + _STRIDE <= size:
                ends = 0
                for byte in data[i : i + _STRIDE]:  # without a branch, so that it becomes vector instructions
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
def _copy_rows(text, starts, rows, out):
    at = 0
    for row in rows:
        for i in range(starts[row], starts[row + 1]):
            out[at] = text[i]
            at += 1
