"""The room on the disk that `prepare` needs, estimated before it begins."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.data.reading.edge_arrays import ARRAYS
from marius_oac.errors import InputError
from marius_oac.prepare.repetitions import SORTED_EDGES
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.untrusted_arrays import npy_header

SAID_BYTES = 1 << 30  # less than that is not worth a line
_PLACES, _SAMPLE = 16, 1 << 16  # of a text file, whose lines are counted there
_ID, _HASH = 4, 16  # bytes of an id, and of an edge in the files of `repetitions`


class Room(NamedTuple):
    """Bytes: `least` is needed in any case, `likely` is an estimate."""

    least: int
    likely: int


def check_room(paths: Iterable[Path], out: Path) -> None:
    """Says what the disk of `out` needs and has, where it is much. Raises InputError if it can't be enough."""
    paths, parent = list(paths), out.absolute().parent
    room = needed(paths)
    while not parent.exists():
        parent = parent.parent
    size, _, free = shutil.disk_usage(parent)
    if not size:  # a file system of no disk, such as /proc, where a folder can't be made
        return
    if room.least > free:
        raise InputError(f"at least {_size(room.least)} of disk are needed meanwhile, {_size(free)} are free", out)
    if room.likely > min(SAID_BYTES, free):
        logger.info(f"{out}: about {_size(room.likely)} of disk are needed meanwhile, {_size(free)} are free")


def needed(paths: Iterable[Path]) -> Room:
    """What files of edges need until they are prepared, the graph itself included.

    All edges lie there twice as ids, of blocks and of the graph. Where they are many, their hashes lie beside them, and
    names may be as large as the texts.
    """
    least = likely = texts = 0
    for path in paths:
        edges, at_least, text = _edges(path)
        least += at_least * 2 * 2 * _ID
        likely += edges
        texts += text
    many = likely > SORTED_EDGES
    likely = likely * (3 * _ID + max(3 * _ID, _HASH if many else 0)) + (texts if many else 0)
    return Room(least, max(least, likely))


def _edges(path: Path) -> tuple[int, int, int]:
    """The number of edges in a file, how many there are at least, and the bytes of its text. What can't be read counts
    as nothing: reading says why."""
    with suppress(OSError, pa.ArrowException, InputError, zlib.error):
        if path.suffix.lower() == ".npy":
            rows = max(npy_header(path)[0])
            return rows, rows, 0
        if path.suffix.lower() in ARRAYS:
            return 0, 0, 0
        if path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as file:
                return file.metadata.num_rows, file.metadata.num_rows, 0
        size = os.path.getsize(path)
        if not size:
            return 0, 0, 0
        with open(path, "rb") as file:
            if path.suffix.lower() == ".gz":
                piece = file.read(1 << 20)
                text = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(piece)
                size = size * len(text) // len(piece)
                return size * text.count(b"\n") // max(len(text), 1), 0, size
            looked = lines = 0
            for place in range(_PLACES):
                file.seek(size * place // _PLACES)
                piece = file.read(_SAMPLE)
                looked, lines = looked + len(piece), lines + piece.count(b"\n")
        edges = size * lines // max(looked, 1)
        return edges, edges // 2, size  # half of it is sure: lines elsewhere would have to be twice as long
    return 0, 0, 0


def _size(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
