"""Which files of a click log a run trains on: its segments, in the order in which they were given.

`log.json` in the run's folder, sealed by a checksum of its own:

    files    path, format, rows and fingerprint of each, in order, and the digests of the pieces of it that are known;
             the files of one segment stand together
    legs     how many files each has, how often they are passed over, whether each file ends an epoch

Files that have been passed over are needed no more: yesterday's may be gone when today's is trained on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.batches import LogSchedule, LogSegment
from marius_oac.data.logs.files import LogFile, scan_files
from marius_oac.data.logs.pieces import contradict
from marius_oac.data.reading.contents import natural_order
from marius_oac.errors import CheckpointError, InputError
from marius_oac.runtime.files.atomic import sealed
from marius_oac.runtime.files.untrusted import Count, Described, FilePath, parse_sealed, read_bounded

LOG = "log.json"


@dataclass(frozen=True)
class RunLog:
    """The files and segments of a run on a click log."""

    files: tuple[LogFile, ...] = ()
    segments: tuple[LogSegment, ...] = ()

    @classmethod
    def start(cls, config: CtrConfig) -> RunLog:
        """The files of a new run. Raises InputError if a file is missing or can't be trained on."""
        return cls().extended(config, config.data.train)

    def extended(self, config: CtrConfig, patterns: Sequence[str]) -> RunLog:
        """The log with one more segment, over the files of `patterns`.

        Raises:
            InputError: a file is missing, can't be trained on, or has been trained on already; or in a progressive run
                files of one folder are not in the order of their names.
        """
        found = scan_files(patterns, config.data)
        known = {file.fingerprint: file for file in self.files}
        for file in found:
            if file.fingerprint in known:
                raise InputError(f"has been trained on already, as {known[file.fingerprint].path}", file.path)
        if config.training.progressive:
            _check_order((*self.files[-1:], *found))
        first, training = len(self.files), config.training
        by_file = training.progressive or config.keys.drop_after > 0
        segment = LogSegment(first, first + len(found), training.epochs, by_file)
        return RunLog((*self.files, *found), (*self.segments, segment))

    def with_pieces(self, pieces: Sequence[Sequence[str | None]]) -> RunLog:
        """The log with the known digests of each file's pieces."""
        return replace(self, files=tuple(map(_with_pieces, self.files, pieces)))

    def with_epochs(self, epochs: int) -> RunLog:
        """The log with another number of passes over the last segment."""
        return replace(self, segments=(*self.segments[:-1], replace(self.segments[-1], passes=epochs)))

    @classmethod
    def read(cls, folder: Path) -> RunLog:
        """The log of a run. Raises CheckpointError if it is missing or damaged."""
        path = folder / LOG
        try:
            return cls.parse(read_bounded(path, error=CheckpointError), path)
        except OSError as error:
            raise CheckpointError(str(error.strerror).lower(), path) from None

    @classmethod
    def parse(cls, text: bytes, path: Path) -> RunLog:
        """The log from the text that `dump` returned. Raises CheckpointError if it is damaged."""
        content = parse_sealed(text, path, _Content, CheckpointError)
        if not all(segment.first < segment.last <= len(content.files) for segment in content.legs):
            raise CheckpointError("is damaged: a segment has files that are not there", path)
        files = (
            LogFile(**{**each.model_dump(), "path": Path(each.path), "pieces": tuple(each.pieces)})
            for each in content.files
        )
        return cls(tuple(files), tuple(LogSegment(**each.model_dump()) for each in content.legs))

    def dump(self) -> str:
        """The text of `log.json`."""
        files = [{**asdict(file), "path": str(file.path)} for file in self.files]
        return sealed({"files": files, "legs": [asdict(segment) for segment in self.segments]}).decode()

    def schedule(self, batch_size: int) -> LogSchedule:
        """Which examples each batch of this size has."""
        return LogSchedule(self.files, self.segments, batch_size)

    def check_files(self, config: CtrConfig, batch_index: int) -> None:
        """Raises CheckpointError if a file that batches from `batch_index` on need is missing or has changed."""
        schedule = self.schedule(config.training.batch_size)
        ended = batch_index >= schedule.ends[-1]
        needed = [] if ended else schedule.visits[schedule.visit(batch_index) :]
        for number in sorted({file for _, file in needed}):
            file = self.files[number]
            (found,) = scan_files([str(file.path)], config.data)
            if found.fingerprint != file.fingerprint or contradict(found.pieces, file.pieces):
                raise CheckpointError("has changed since the run began", file.path)


class _File(Described):
    """Of `LogFile`."""

    path: FilePath
    format: Literal["csv", "parquet", "libsvm"]
    rows: Annotated[Count, Field(ge=1)]
    fingerprint: str
    pieces: list[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None] = []


class _Segment(Described):
    """Of `LogSegment`."""

    first: Count
    last: Count
    passes: Annotated[Count, Field(ge=1)]
    by_file: bool


class _Content(Described):
    """Of `log.json`."""

    files: list[_File]
    legs: list[_Segment]


def _with_pieces(file: LogFile, pieces: Sequence[str | None]) -> LogFile:
    return replace(file, pieces=tuple(pieces))


def _check_order(files: Sequence[LogFile]) -> None:
    """Raises InputError if files of a folder are not in order: a model that has seen tomorrow predicts today too
    well."""
    for before, after in itertools.pairwise(files):
        same_folder = before.path.resolve().parent == after.path.resolve().parent
        if same_folder and natural_order(after.path.name) < natural_order(before.path.name):
            raise InputError(f"comes after {before.path.name}: a progressive run takes files in order", after.path)
