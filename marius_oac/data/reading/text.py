"""Reads text files of edges by blocks of whole lines, which `text_parser` parses."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from marius_oac.data.reading.edge_file import EdgeFile
from marius_oac.data.reading.text_parser import Parser
from marius_oac.errors import InputError

BLOCK_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


def read_text(file: EdgeFile, delimiter: str | None) -> Iterator[pa.RecordBatch]:
    """Yields the file's edges as batches of strings.

    Args:
        delimiter: the usual one of such files, or None.

    Raises:
        InputError: as `readers.read_edges`.
    """
    parser = Parser(file, delimiter)
    for first_line, block in _blocks(file.path):
        yield from parser.parse(first_line, block)
    file.check_rows(parser.rows)
    parser.tell()


def read_pieces(path: Path, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yields the file's bytes, decompressed, `size` at a time.

    Raises:
        InputError: the compressed file is truncated or damaged, or the disk fails.
    """
    done = 0
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb") as stream:
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
