"""Finds the files of a click log and reads their examples in blocks; checks every row before training begins.

Guarantees of `BlockReader`:
- One thread at a time may use it. Any number of threads may use the blocks. Parsing and conversion don't hold the GIL.
- Memory holds at most AHEAD raw blocks that were skipped and not returned yet, and what the format's reader holds.
- Reading blocks in order, or up to AHEAD out of order, takes one pass over a file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.columns import LogBlock, convert
from marius_oac.data.logs.formats import open_log
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.schema import RawBlock
from marius_oac.data.reading.readers import check_readable
from marius_oac.data.reading.sources import paths_of
from marius_oac.errors import InputError
from marius_oac.runtime.closing import Closable
from marius_oac.runtime.progress import Progress

AHEAD = 4
_SAMPLES, _SAMPLE_BYTES = 32, 1 << 14


@dataclass(frozen=True)
class LogFile:
    """A file of a log.

    Attributes:
        path: of the file.
        format: "csv", "parquet" or "libsvm".
        rows: the number of examples, at least 1.
        fingerprint: of the file's size and samples of its bytes, hexadecimal; it identifies the file.
        pieces: the known digests of its contents, see `logs.pieces`.
    """

    path: Path
    format: str
    rows: int
    fingerprint: str
    pieces: tuple[str | None, ...] = ()


def scan_files(patterns: Sequence[str], config: LogConfig, with_labels: bool = True) -> tuple[LogFile, ...]:
    """Finds the files that match patterns, in the order of the patterns, and for each pattern in natural order by name,
    and counts their examples. Text files are read completely for that.

    Args:
        with_labels: whether files need the label's column.

    Raises:
        InputError: a pattern matches no files; a file is listed twice, is missing, can't be read, is empty, is not of
            its format, or has other columns than the schema's.
    """
    files = []
    seen: dict[Path, Path] = {}
    for path in (path for pattern in patterns for path in paths_of(pattern)):
        real = Path(os.path.realpath(path))
        if real in seen:
            raise InputError(f"is named twice, also as {seen[real]}", path)
        seen[real] = path
        files.append(_scanned(path, config, with_labels))
    return tuple(files)


def _scanned(path: Path, config: LogConfig, with_labels: bool) -> LogFile:
    check_readable(path)
    log, pieces = open_log(path, config, with_labels), Pieces(path)
    rows = log.rows(pieces)
    if not rows:
        raise InputError("the file has no examples", path)
    return LogFile(path, log.format, rows, _fingerprint(path), pieces.known())


def _fingerprint(path: Path) -> str:
    """A digest of the file's size, both ends, and evenly spaced samples between them."""
    size = os.stat(path).st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for place in sorted({(size - _SAMPLE_BYTES) * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
            file.seek(max(place, 0))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class LazyBlock:
    """A block of a file whose examples are parsed and converted on demand."""

    raw: RawBlock
    config: LogConfig
    with_labels: bool
    path: Path

    @property
    def size(self) -> int:
        """The number of examples, n."""
        return len(self.raw)

    def examples(self, numbers: np.ndarray) -> LogBlock:
        """The examples with these indices, int64 [k] in [0, n), ascending, k >= 1.

        Raises:
            InputError: `convert` or the format's reader refuses a value.
        """
        return LogBlock.join(list(self._converted(numbers)))

    def check(self) -> None:
        """Raises InputError as `examples` of all examples would, without keeping them."""
        for _ in self._converted(np.arange(self.size)):
            pass

    def _converted(self, numbers: np.ndarray) -> Iterator[LogBlock]:
        parsed = self.raw.parse(numbers)
        return (convert(batch, self.config, self.with_labels, self.path, rows) for rows, batch in parsed)


class BlockReader(Closable):
    """Reads the examples of files in blocks. Use it as a context manager, or `close` it.

    Args:
        files: of `scan_files`, of one scan or several.
        with_labels: whether blocks have labels.
        pieces: of each file, to check that its contents haven't changed; None: not checked.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        config: LogConfig,
        with_labels: bool = True,
        pieces: Sequence[Pieces] | None = None,
    ):
        self._files, self._config, self._with_labels, self._pieces = files, config, with_labels, pieces
        self._passed: dict[tuple[int, int, int], LazyBlock] = {}  # by file, number, rows; in order of reading
        self._open: _OpenFile | None = None

    def block(self, file: int, number: int, block_rows: int) -> LogBlock:
        """All examples of a block. Arguments and errors are those of `lazy_block` and `LazyBlock.examples`."""
        block = self.lazy_block(file, number, block_rows)
        return block.examples(np.arange(block.size))

    def lazy_block(self, file: int, number: int, block_rows: int) -> LazyBlock:
        """The rows [number * block_rows, (number + 1) * block_rows) of a file. The last block may be shorter.

        Raises:
            InputError: the file is missing, damaged, or has changed since it was scanned.
            ValueError: there is no such block.
        """
        if not 0 <= number * block_rows < self._files[file].rows:
            raise ValueError(f"file {file} has no block {number} of {block_rows} rows")
        wanted = (file, number, block_rows)
        found = self._passed.pop(wanted, None)
        if found is not None:
            return found
        now = self._open
        if now is not None and (now.file, now.block_rows) != (file, block_rows):
            self._finish(now)
            now = None
        if now is None or not now.next <= number <= now.next + AHEAD:
            self.close_file()
            now = self._open = self._opened(file, number, block_rows)
        while now.next < number:
            self._keep(now)
        block = self._next(now)
        if now.next * block_rows >= self._files[file].rows:
            self.close_file()
        return block

    def _opened(self, file: int, number: int, block_rows: int) -> _OpenFile:
        found = self._files[file]
        check_readable(found.path)
        log = open_log(found.path, self._config, self._with_labels)
        pieces = self._pieces[file] if self._pieces else None
        blocks = log.blocks(number * block_rows, min(block_rows, found.rows), pieces)
        return _OpenFile(found, blocks, file, number, block_rows)

    def _next(self, now: _OpenFile) -> LazyBlock:
        return LazyBlock(now.read(), self._config, self._with_labels, self._files[now.file].path)

    def _keep(self, now: _OpenFile) -> None:
        """Reads a block ahead; another thread is about to ask for it."""
        key = (now.file, now.next, now.block_rows)
        self._passed[key] = self._next(now)
        while len(self._passed) > AHEAD:
            del self._passed[next(iter(self._passed))]

    def _finish(self, now: _OpenFile) -> None:
        """Closes the open file because another one is needed. Keeps its last blocks, which may still be asked for."""
        left = -(-self._files[now.file].rows // now.block_rows) - now.next
        while 0 < left <= AHEAD:
            self._keep(now)
            left -= 1
        self.close_file()

    def close_file(self) -> None:
        """Closes the file that is being read. Reading the next block opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def close(self) -> None:
        """Closes the open file and drops the blocks that were read ahead."""
        self.close_file()
        self._passed.clear()


class _OpenFile:
    """A file that is being read from block `number` on. `next` is the number of the block that `read` returns next."""

    def __init__(
        self, found: LogFile, blocks: Generator[RawBlock, None, None], file: int, number: int, block_rows: int
    ):
        self.file, self.next, self.block_rows = file, number, block_rows
        self._found, self._blocks = found, blocks

    def read(self) -> RawBlock:
        first, rows = self.next * self.block_rows, self._found.rows
        end = min(first + self.block_rows, rows)
        raw = next(self._blocks, None)
        found = first + (len(raw) if raw else 0)
        if found > end or (end == rows and found == end and next(self._blocks, None)):
            raise self._changed("more")
        if found < end or raw is None:
            raise self._changed(f"{found:,}")
        self.next += 1
        return raw

    def _changed(self, found: str) -> InputError:
        what = f"{self._found.rows:,} examples were counted, {found} are found: the file has changed"
        return InputError(what, self._found.path)

    def close(self) -> None:
        self._blocks.close()


BLOCK_EXAMPLES = 1 << 16


def check_rows(
    files: Sequence[LogFile], config: LogConfig, pieces: Sequence[Pieces], part: int = 0, parts: int = 1
) -> None:
    """Parses and converts all examples of `files`, which have labels. The digests of what is read are recorded in
    `pieces`, so that training fails if the files change.

    Args:
        part, parts: check only every `parts`-th block, starting with block `part`.

    Raises:
        InputError: training would refuse an example; names its file and row.
    """
    with (
        BlockReader(files, config, pieces=pieces) as reader,
        Progress("checking the rows", "examples", sum(file.rows for file in files)) as progress,
    ):
        place = 0
        for number, file in enumerate(files):
            for block in range(-(-file.rows // BLOCK_EXAMPLES)):
                raw = reader.lazy_block(number, block, BLOCK_EXAMPLES)
                if place % parts == part:
                    raw.check()
                place += 1
                progress.add(raw.size)
