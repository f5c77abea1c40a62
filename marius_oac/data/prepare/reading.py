"""Reads the files of all splits, one after the other, as if those of a split were one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marius_oac.data.prepare.edge_file import Columns, EdgeFile, ReadOptions
from marius_oac.data.prepare.encode import Encoder
from marius_oac.data.prepare.readers import check_readable, read_edges
from marius_oac.data.prepare.remote import check_there, fetched, is_address, shown
from marius_oac.data.prepare.room import check_room
from marius_oac.data.prepare.sources import Source
from marius_oac.data.prepare.splits import SPLITS
from marius_oac.errors import InputError
from marius_oac.runtime.progress import Progress
from marius_oac.types import present


def check_files(files: Mapping[str, Sequence[Source]], out: Path) -> None:
    """Looks at all files before the first is read.

    Raises:
        InputError: one is missing, is no file, or is empty and alone; or the disk has too little room for a graph of
            those that are here.
    """
    here = []
    for named in files.values():
        for file in named:
            if is_address(file):
                check_there(str(file))
            else:
                check_readable(Path(file), may_be_empty=len(named) > 1)
                here.append(Path(file))
    check_room(here, out)


def read_files(
    encoder: Encoder, files: Mapping[str, Sequence[Source]], read: ReadOptions, out: Path, work: Path
) -> tuple[tuple[int, int, int], int]:
    """Gives all edges to the encoder, those of "all" or of each split.

    Args:
        out: the graph folder, for messages. work: a folder for the copies of files with addresses, one at a time.

    Returns:
        The number of the first edge after each split, and the number of comment lines.

    Raises:
        InputError: as `read_edges`, `fetched` and `check_room`; files don't have the same columns; or there are no
            edges in those of a split.
    """
    ends, comment_lines = {}, 0
    for split in ("all", *SPLITS):
        if split in files:
            comment_lines += _read_split(encoder, files[split], read, out, work)
        ends[split] = encoder.rows
    return (ends["train"], ends["valid"], ends["test"]), comment_lines


def _read_split(encoder: Encoder, files: Sequence[Source], read: ReadOptions, out: Path, work: Path) -> int:
    """Returns the number of comment lines."""
    first, several = encoder.rows, len(files) > 1
    before: Columns | None = None
    comment_lines, waiting = 0, []  # files before the first that shows what the columns are
    for place, each in enumerate(files, 1):
        shows = f" ({place:,} of {len(files):,})" if several else ""
        with fetched(each, work / "fetched") as path:
            if is_address(each) and not several:
                check_room([path], out)
            if several and before is None:
                before = _columns(path, read, shown(str(each)))
                if before is None and place < len(files):
                    waiting.append(each)
                    continue
                for early in waiting:
                    with fetched(early, work / "early") as copy:
                        comment_lines += _read_file(encoder, EdgeFile(copy, read, one_of_several=True, before=before))
            file = EdgeFile(path, read, one_of_several=several, before=before)
            comment_lines += _read_file(encoder, file, shows)
    if encoder.rows == first:
        raise InputError(f"none of {len(files):,} files has edges", shown(str(files[0])))
    return comment_lines


def _columns(path: Path, read: ReadOptions, name: str) -> Columns | None:
    """The columns of one of several files, called by this name; None: it does not show them. A text's only line may be
    a header or an edge."""
    file = EdgeFile(path, read, one_of_several=True)
    edges = read_edges(file)
    rows = len(next(edges, ()))
    edges.close()
    known = file.columns is not None and (rows > 1 or file.columns.names is not None or file.columns.kind != "text")
    return replace(present(file.columns), file=name) if known else None


def _read_file(encoder: Encoder, file: EdgeFile, shows: str = "") -> int:
    """Returns the number of comment lines."""
    with Progress(f"reading {file.path.name}{shows}", "edges") as progress:
        for batch in read_edges(file):
            encoder.add(batch, file.path)
            progress.add(len(batch))
    return file.comment_lines
