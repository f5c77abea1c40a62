"""Reads the files of all splits, one after the other, as if those of a split were one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from marius_oac.data.reading.edge_file import Columns, EdgeFile, ReadOptions
from marius_oac.data.reading.edge_names import header
from marius_oac.data.reading.readers import check_readable, is_text, read_edges
from marius_oac.data.reading.remote import fetched, is_address, shown
from marius_oac.data.reading.sources import Source
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError
from marius_oac.prepare.encode import Encoder
from marius_oac.prepare.room import check_room
from marius_oac.runtime.progress import Progress


def check_files(files: Mapping[str, Sequence[Source]], out: Path) -> None:
    """Looks at all files before the first is read.

    Raises:
        InputError: one that is here is missing or no file; or the disk has too little room for a graph of those.
    """
    here = []
    for named in files.values():
        for file in named:
            if not is_address(file):
                check_readable(Path(file), may_be_empty=True)
                here.append(Path(file))
    check_room(here, out)


def read_files(
    encoder: Encoder, files: Mapping[str, Sequence[Source]], read: ReadOptions, out: Path, work: Path
) -> tuple[tuple[int, int, int], int]:
    """Gives all edges to the encoder, those of "all" or of each split.

    Args:
        out: the graph folder, for messages. work: a folder for copies of files with addresses.

    Returns:
        The number of the first edge after each split, and the number of comment lines.

    Raises:
        InputError: as `read_edges`, `fetched` and `check_room`; files don't have the same columns; or there are no
            edges in those of a split.
    """
    ends, comment_lines = {}, 0
    like: Columns | None = None
    for split in ("all", *SPLITS):
        if split in files:
            lines, found = _read_split(encoder, files[split], read, out, work, like)
            comment_lines, like = comment_lines + lines, like or found
        ends[split] = encoder.rows
    return (ends["train"], ends["valid"], ends["test"]), comment_lines


def _read_split(
    encoder: Encoder, files: Sequence[Source], read: ReadOptions, out: Path, work: Path, like: Columns | None
) -> tuple[int, Columns | None]:
    """Returns the number of comment lines, and the columns. `like`: those of train."""
    if len(files) == 1:
        with fetched(files[0], work / "fetched") as path:
            if is_address(files[0]):
                check_room([path], out)
            only = EdgeFile(path, read, called=shown(str(files[0])), like=like)
            return _read_file(encoder, only), only.columns
    reader, first = _Several(encoder, read, work, len(files), like), encoder.rows
    for file in files:
        reader.read(file)
    reader.end()
    if encoder.rows == first:
        raise InputError(f"none of {len(files):,} files has edges", shown(str(files[0])))
    return reader.comment_lines, reader.columns


class _Several:
    """Reads files one after the other. A text of one line, a header or an edge, waits until another text shows which;
    what follows waits with it."""

    def __init__(self, encoder: Encoder, read: ReadOptions, work: Path, count: int, like: Columns | None):
        self._encoder, self._options, self._work, self._count = encoder, read, work, count
        self._like = like
        self._seen: dict[str, Columns] = {}
        self._waiting: list[Source] = []
        self._lines: list[Sequence[str]] = []  # of texts that wait
        self._done = self.comment_lines = 0
        self._told = set[str]()

    @property
    def columns(self) -> Columns | None:
        """Those of the first file with edges."""
        return next(iter(self._seen.values()), None)

    def read(self, file: Source) -> None:
        with fetched(file, self._work / "fetched") as path:
            if "text" not in self._seen:
                waits = self._text_waits(path, shown(str(file))) if is_text(path) else bool(self._waiting)
                if waits:
                    self._waiting.append(file)
                    return
            self._read_waiting()
            self._read(path, shown(str(file)))

    def end(self) -> None:
        """Reads those that still wait."""
        self._check_first([])
        self._read_waiting()

    def _text_waits(self, path: Path, name: str) -> bool:
        """Whether a text must wait; notes its columns if it shows them. One without lines tells nothing."""
        file = EdgeFile(path, self._options, one_of_several=True, called=name, like=self._like, told=self._told)
        edges = read_edges(file)
        next(edges, None)
        edges.close()
        if (found := file.columns) is None:
            return bool(self._waiting)
        if found.names is None:
            if len(file.first_lines) == 1:
                self._lines += file.first_lines
                return True
            self._check_first(file.first_lines)
        self._seen["text"] = found
        return False

    def _check_first(self, following: Sequence[Sequence[str]]) -> None:
        """Raises InputError if the first line that waits may be a header of the others and of those that follow."""
        if self._options.header is None and self._lines and header(self._lines[0], [*self._lines[1:], *following])[0]:
            why = "column names, or an edge? leave this file out, or say --no-header"
            raise InputError(why, shown(str(self._waiting[0])))

    def _read_waiting(self) -> None:
        waiting, self._waiting, self._lines = self._waiting, [], []
        for file in waiting:
            with fetched(file, self._work / "early") as path:
                self._read(path, shown(str(file)))

    def _read(self, path: Path, name: str) -> None:
        self._done += 1
        file = EdgeFile(path, self._options, one_of_several=True, before=self._seen, called=name, like=self._like,
                        told=self._told)  # fmt: skip
        self.comment_lines += _read_file(self._encoder, file, f" ({self._done:,} of {self._count:,})")
        if file.columns is not None:
            self._seen.setdefault(file.columns.kind, file.columns)


def _read_file(encoder: Encoder, file: EdgeFile, shows: str = "") -> int:
    """Returns the number of comment lines."""
    with Progress(f"reading {file.path.name}{shows}", "edges") as progress:
        for batch in read_edges(file):
            encoder.add(batch, file.path)
            progress.add(len(batch))
    return file.comment_lines
