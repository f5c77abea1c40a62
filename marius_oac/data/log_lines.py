"""The rows of a text: its lines but for blank ones, found without being parsed, so that parsers get only those wanted.

Guarantees: the file is read once, in order; in memory are the lines of one block and the piece that is being read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from marius_oac.data.compiled import compiled
from marius_oac.data.fingerprints import count_lines
from marius_oac.data.progress import Progress
from marius_oac.errors import InputError

TEXT_BYTES = 4 << 20  # of text read, and parsed, at once
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


def blocks_of_lines(path: Path, first: int, rows: int) -> Iterator[Lines]:
    """Blocks of so many rows from row `first` on, the last one of what is left; what comes before is passed over.

    Raises:
        InputError: the file can't be read.
    """
    # What is passed over comes in blocks too, the first of which is shorter.
    done, wanted = 0, first % rows or rows
    starts, found, inside = np.empty(rows + 1, np.int64), 0, False
    held: list[np.ndarray] = []  # the block's text as far as it was read, `size` bytes
    size = 0
    for piece in _pieces(path):
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
    if found and done >= first:
        starts[found] = size + inside
        held.append(np.frombuffer(b"\n" if inside else b"", np.uint8))
        yield Lines(done, _joined(held), starts[: found + 1].copy())


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def count_rows(path: Path) -> int:
    """How many rows the file has, a header among them.

    Raises:
        InputError: it can't be read.
    """
    rows, inside = 0, False
    with Progress(f"counting the examples of {path.name}", "B") as progress:
        for piece in _pieces(path):
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


def _pieces(path: Path) -> Iterator[bytes]:
    """The file's text without a byte order mark."""
    mark = BYTE_ORDER_MARK
    try:
        with _open_text(path) as stream:
            while piece := stream.read(TEXT_BYTES):
                yield piece.removeprefix(mark)
                mark = b""
    except OSError as error:
        raise _read_error(error, path) from None


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
