"""The files of a click log: which there are, and their examples block by block.

Guarantees of `BlockReader`:
- One thread at a time; what it gives may be used by any number of them. Parsing and conversion do not hold the GIL.
- Memory: the raw blocks it has passed over and not given out, AHEAD at most, and what the format's reader holds.
- Blocks asked for in order, or up to AHEAD out of order, cost one pass over a file.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.columns import LogBlock, convert
from marius_oac.data.logs.formats import open_log
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.schema import RawBlock
from marius_oac.data.prepare.readers import check_readable
from marius_oac.errors import InputError

AHEAD = 4
_SAMPLES, _SAMPLE_BYTES = 32, 1 << 14


@dataclass(frozen=True)
class LogFile:
    """A file of a log.

    Attributes:
        path, format: where and what ("csv", "parquet", "libsvm") it is.
        rows: examples, at least 1.
        fingerprint: of its size and of samples of its bytes, hexadecimal; by it files are told apart.
        kinds: whether keys of a feature of kind auto are "integer" or "string" here, by feature.
        pieces: what is known of all of its bytes, see `logs.pieces`.
    """

    path: Path
    format: str
    rows: int
    fingerprint: str
    kinds: dict[str, str] = field(default_factory=dict)
    pieces: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class LogFiles:
    """The files that patterns name, in order: pattern by pattern, a pattern's files by name, numbers there by size."""

    files: tuple[LogFile, ...]

    @classmethod
    def scan(cls, patterns: Sequence[str], config: LogConfig, with_labels: bool = True) -> LogFiles:
        """Looks at all files and counts their examples; texts are read through for that.

        Args:
            with_labels: whether files need the label's column.

        Raises:
            InputError: a pattern has no files; a file is named twice, is missing, can't be read, is empty, is not of
                its format, or has columns other than the schema's; a column's type changes from file to file.
        """
        files = []
        seen: dict[Path, Path] = {}
        for path in (path for pattern in patterns for path in paths_of(pattern)):
            real = Path(os.path.realpath(path))
            if real in seen:
                raise InputError(f"is named twice, also as {seen[real]}", path)
            seen[real] = path
            files.append(_scanned(path, config, with_labels))
        check_kinds(files)
        return cls(tuple(files))


def check_kinds(files: Sequence[LogFile]) -> None:
    """Raises InputError where a column's keys are integers in one file and texts in another."""
    first: dict[str, tuple[str, Path]] = {}
    for file in files:
        for name, kind in file.kinds.items():
            before, path = first.setdefault(name, (kind, file.path))
            if before != kind:
                raise InputError(
                    f"the type of column '{name}' changes: {kind} here, {before} in {path} (its kind in the schema can "
                    "settle it)",
                    file.path,
                )


def paths_of(pattern: str) -> Iterator[Path]:
    """The files that a name or pattern means, in order. Raises InputError where a pattern has none."""
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        yield Path(pattern)
        return
    found = sorted(glob.glob(pattern, recursive=True), key=natural_order)
    if not found:
        raise InputError("no file has such a name", pattern)
    yield from map(Path, found)


def natural_order(name: str | Path) -> list[tuple[int, str]]:
    """A sort key by which day_9 comes before day_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(name))]


def _scanned(path: Path, config: LogConfig, with_labels: bool) -> LogFile:
    check_readable(path)
    log, pieces = open_log(path, config, with_labels), Pieces(path)
    rows = log.rows(pieces)
    if not rows:
        raise InputError("the file has no examples", path)
    return LogFile(path, log.format, rows, _fingerprint(path), log.kinds, pieces.known())


def _fingerprint(path: Path) -> str:
    """Of the size, both ends and evenly spaced samples between."""
    size = os.stat(path).st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for place in sorted({(size - _SAMPLE_BYTES) * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
            file.seek(max(place, 0))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class LazyBlock:
    """A block of a file whose examples are parsed and converted when they are asked for."""

    raw: RawBlock
    config: LogConfig
    with_labels: bool
    path: Path

    @property
    def size(self) -> int:
        """Examples, n."""
        return len(self.raw)

    def examples(self, numbers: np.ndarray) -> LogBlock:
        """Those with these numbers, int64 [k] in [0, n), in ascending order, k >= 1.

        Raises:
            InputError: they hold what `convert` or the format's reader refuses.
        """
        return LogBlock.join(list(self._converted(numbers)))

    def check(self) -> None:
        """Raises InputError as `examples` of all of them would, and keeps none."""
        for _ in self._converted(np.arange(self.size)):
            pass

    def _converted(self, numbers: np.ndarray) -> Iterator[LogBlock]:
        parsed = self.raw.parse(numbers)
        return (convert(batch, self.config, self.with_labels, self.path, rows) for rows, batch in parsed)


class BlockReader:
    """The examples of files in blocks. Use it as a context manager, or `close` it.

    Args:
        files: of `LogFiles.scan`, of one scan or several.
        with_labels: whether blocks have labels.
        pieces: of each file, if what is read is to be compared with what was read before.

    Raises:
        InputError: a column's type changes from file to file.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        config: LogConfig,
        with_labels: bool = True,
        pieces: Sequence[Pieces] | None = None,
    ):
        check_kinds(files)
        self._files, self._config, self._with_labels, self._pieces = files, config, with_labels, pieces
        self._passed: dict[tuple[int, int, int], LazyBlock] = {}  # by file, number, rows; in order of reading
        self._open: _OpenFile | None = None

    def block(self, file: int, number: int, block_rows: int) -> LogBlock:
        """All of `lazy_block`'s examples. Raises InputError as `lazy_block` and `LazyBlock.examples` do."""
        block = self.lazy_block(file, number, block_rows)
        return block.examples(np.arange(block.size))

    def lazy_block(self, file: int, number: int, block_rows: int) -> LazyBlock:
        """Rows [number * block_rows, (number + 1) * block_rows) of a file; its last block may be shorter.

        Raises:
            InputError: the file is missing, damaged, or has changed since it was scanned.
        """
        if not 0 <= number * block_rows < self._files[file].rows:
            raise ValueError(f"file {file} has no block {number} of {block_rows} rows")
        wanted = (file, number, block_rows)
        found = self._passed.pop(wanted, None)
        if found is not None:
            return found
        now = self._open
        if now is not None and (now.file, now.block_rows) != (file, block_rows):
            self._finish()
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
        log, pieces = open_log(found.path, self._config, self._with_labels), self._pieces and self._pieces[file]
        blocks = log.blocks(number * block_rows, min(block_rows, found.rows), pieces)
        return _OpenFile(found, blocks, file, number, block_rows)

    def _next(self, now: _OpenFile) -> LazyBlock:
        return LazyBlock(now.read(), self._config, self._with_labels, self._files[now.file].path)

    def _keep(self, now: _OpenFile) -> None:
        """Reads a block that was not asked for yet: another thread is about to."""
        key = (now.file, now.next, now.block_rows)
        self._passed[key] = self._next(now)
        while len(self._passed) > AHEAD:
            del self._passed[next(iter(self._passed))]

    def _finish(self) -> None:
        """Leaves a file for another; its last blocks may still be asked for."""
        now = self._open
        assert now is not None
        left = -(-self._files[now.file].rows // now.block_rows) - now.next
        while 0 < left <= AHEAD:
            self._keep(now)
            left -= 1
        self.close_file()

    def close_file(self) -> None:
        """Closes the file that is being read; the next block opens it anew."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def close(self) -> None:
        """Closes what is open and forgets what was read."""
        self.close_file()
        self._passed.clear()

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _OpenFile:
    """A file being read, from block `number` on; `next` is the block that `read` gives."""

    def __init__(self, found: LogFile, blocks: Iterator[RawBlock], file: int, number: int, block_rows: int):
        self.file, self.next, self.block_rows = file, number, block_rows
        self._found, self._blocks = found, blocks

    def read(self) -> RawBlock:
        first, rows = self.next * self.block_rows, self._found.rows
        end = min(first + self.block_rows, rows)
        raw = next(self._blocks, None)
        found = first + (len(raw) if raw else 0)
        if found > end or (end == rows and found == end and next(self._blocks, None)):
            raise self._changed("more")
        if found < end:
            raise self._changed(f"{found:,}")
        self.next += 1
        return raw

    def _changed(self, found: str) -> InputError:
        what = f"{self._found.rows:,} examples were counted, {found} are found: the file has changed"
        return InputError(what, self._found.path)

    def close(self) -> None:
        self._blocks.close()
