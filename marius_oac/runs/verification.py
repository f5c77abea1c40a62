"""`marius-oac verify`: reads all files of a run, and compares them with their checksums.

The run may be training: a checkpoint that is being read is not removed, and one that was removed before is skipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from marius_oac.data.graphs.derived import derived_files, read_derived
from marius_oac.data.logs.run_log import LOG, RunLog
from marius_oac.errors import CheckpointError, InputError
from marius_oac.runs.checkpoints.checkpoint import MANIFEST, TABLES
from marius_oac.runs.checkpoints.origin import apart
from marius_oac.runs.checkpoints.parts import NODES, Layout, identity_of
from marius_oac.runs.checkpoints.pins import Missing
from marius_oac.runs.checkpoints.retention import BEST, FOLDER, SAVED, Checkpoints, read_saved
from marius_oac.runs.folder.about import ABOUT, About
from marius_oac.runs.folder.folder import CONFIG, SUMMARY, RunFolder
from marius_oac.runs.folder.metrics import METRICS, MetricsFile, Prefix
from marius_oac.runs.folder.order import ORDER, OrderFile
from marius_oac.runtime.files.hashing import check_files
from marius_oac.runtime.files.untrusted import DescribedFile, ListedFile, typed
from marius_oac.runtime.progress import Progress
from marius_oac.storage.saved import verify_tables
from marius_oac.storage.snapshots import SavedTable

DERIVED = {"buckets": "buckets.json", "encoded": "encoded.json", "names": "names.json"}
"""Folders of derived arrays, and their manifests."""


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        files, bytes: that were read and compared; pages of rows count by their bytes.
        damaged: a line for each file that is not what was written, with its name.
        unchecked: files of the run without a checksum, and why they have none.
    """

    path: Path
    files: int
    bytes: int
    seconds: float
    damaged: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged

    def __str__(self) -> str:
        verdict = "sound" if self.sound else f"{len(self.damaged)} damaged"
        read = f"{self.files:,} files, {self.bytes:,} bytes, {self.seconds:.1f} s"
        lines = [f"{self.path}: {verdict}; {read}", *(f"  damaged: {line}" for line in self.damaged)]
        return "\n".join([*lines, *(f"  not checked: {line}" for line in self.unchecked)])


def verify(path: str | Path) -> Verification:
    """Checks a run. Raises CheckpointError if there is none, or one of another program or version."""
    path, begin = Path(path), time.monotonic()
    if not (path / ABOUT).exists():
        About.read(path)  # raises the error
    with Progress(f"verifying {path}", "B", _size(path)) as progress:
        found = _Findings(progress)
        _Run(path, found).check()
    seconds = time.monotonic() - begin
    return Verification(path, found.files, found.bytes, seconds, tuple(found.damaged), tuple(found.unchecked))


@dataclass
class _Findings:
    """The results so far."""

    progress: Progress
    files: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def read(self, size: int) -> None:
        self.bytes += size
        self.progress.add(size)

    def check(self, path: Path, work: Callable[[], Any]) -> Any:
        """Returns what `work`, which compares a file, returns; records damage and returns None if the file is
        damaged."""
        self.files += 1
        try:
            return work()
        except InputError as error:
            self.damaged.append(str(error))
        except OSError as error:
            self.damaged.append(f"{path}: can't be read: {error.strerror}")
        return None

    def small(self, path: Path, work: Callable[[], Any]) -> Any:
        """Calls `check` for a file that `work` reads at once."""
        with suppress(OSError):
            self.read(path.stat().st_size)
        return self.check(path, work)


class _Run:
    """A run's folder, or that of one of its nodes, which has the same files.

    Args:
        part: of a node's folder, what its checkpoints are known by.
        of: likewise, the id of the run, if that is known.
    """

    def __init__(self, path: Path, found: _Findings, part: str | None = None, of: str | None = None):
        self.path, self.found, self._part, self._of = path, found, part, of

    def check(self) -> None:
        path, found = self.path, self.found
        about = found.small(path / ABOUT, lambda: About.read(path))
        folder = found.small(path / CONFIG, lambda: RunFolder.open(path)) if about else None
        if about and self._of not in (None, about.id):
            found.damaged.append(f"{path / ABOUT}: is of another run than that of the first node")
        if folder:
            if about.arithmetic and (unlike := about.arithmetic.elsewhere(folder.config.compute)):
                found.unchecked.append(f"{path}: whether this installation computes the run's bits: {unlike}")
            for name in about.files:
                found.small(path / name, partial(folder.read_file, name))
        if (path / LOG).exists() or (folder and folder.config.data_grows):
            found.small(path / LOG, lambda: RunLog.read(path))
        if (path / SUMMARY).exists() and folder:
            found.small(path / SUMMARY, folder.summary)
        id = self._of or (about.id if about else None)
        part = self._part
        if part is None and about:  # a node's folder may be verified by itself
            alone = about.over_nodes and not (path / NODES).is_dir()
            part = identity_of(path.absolute()) if alone else ""
        records = [*self._rows(path, id, part), *self._nodes(id)]
        self._records(folder, *max(records, key=lambda each: each[0], default=(0, {})))
        self._derived()
        self._others(about)

    def _rows(self, rows: Path, run: str | None, part: str | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Checks the checkpoints in a folder, with their pages, and that they are those of this run and part; yields
        position and records of each."""
        found, checkpoints = self.found, Checkpoints(rows / FOLDER, run=run, part=part)
        if (rows / SAVED).exists():
            # Over nodes it names a checkpoint of the parts, which may be elsewhere.
            over_nodes = rows == self.path and (rows / NODES).is_dir()
            named = None if over_nodes else checkpoints
            found.small(rows / SAVED, lambda: _check_named(lambda: read_saved(rows), named, rows / SAVED))
        if (rows / FOLDER / BEST).exists():
            path = rows / FOLDER / BEST
            found.small(path, lambda: _check_named(checkpoints.best, checkpoints, path))
        found.files += verify_tables(rows / TABLES, found.small)
        before: dict[str, SavedTable] = {}
        for name in checkpoints.names():
            with suppress(Missing):  # the run is training, and has removed it
                yield from self._checkpoint(checkpoints, name, before)

    def _checkpoint(
        self, checkpoints: Checkpoints, name: str, before: dict[str, SavedTable]
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        found, path = self.found, checkpoints.folder / name
        try:
            checkpoint = checkpoints.read(name, pinned=True)
        except Missing:
            raise
        except CheckpointError as error:
            found.files += 1
            found.damaged.append(str(error))
            return
        with closing(checkpoint):
            found.small(path / MANIFEST, lambda: None)
            sound = self._files(path, checkpoint.files)
            for table in map(checkpoint.table, checkpoint.pages):
                if {f"{table.name}.{part}.npy" for part in table.parts} <= sound:
                    self._elsewhere(table, before)
            yield checkpoint.batch_index, checkpoint.extra

    def _files(self, folder: Path, files: Mapping[str, ListedFile]) -> set[str]:
        """Checks files of a folder, some at once; returns the names of those that are sound."""
        listed = {folder / name: each for name, each in files.items()}
        damaged = check_files(listed, CheckpointError, read=self.found.read)
        self.found.files += len(files)
        self.found.damaged += map(str, damaged.values())
        return {name for name in files if folder / name not in damaged}

    def _elsewhere(self, table: SavedTable, before: dict[str, SavedTable]) -> None:
        """Checks a table's rows outside of its checkpoint, except those that were checked with the one before."""
        try:
            for error in table.damage(before.get(table.name), self.found.read):
                self.found.damaged.append(f"{error} (checkpoint {table.path.name})")
            before[table.name] = table
        except InputError as error:
            self.found.damaged.append(f"{error} (checkpoint {table.path.name})")

    def _nodes(self, run: str | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Checks the parts of nodes, and that those of each checkpoint are one moment. The first node's part is no
        run's folder of its own, but belongs to this one."""
        for layout in Layout.all(self.path):
            parts = [part.folder.parent for part in layout.parts]
            if len(parts) < layout.size:
                self.found.unchecked.append(
                    f"{layout.path}: the parts of {layout.size - len(parts)} nodes lie elsewhere"
                )
            for part in parts:
                if (part / ABOUT).exists():
                    _Run(part, self.found, identity_of(part), run).check()
                else:
                    yield from self._rows(part, run, identity_of(part))
            self._moments(layout, run)

    def _moments(self, layout: Layout, run: str | None) -> None:
        parts = [Checkpoints(part.folder, run=run, part=identity_of(part.folder.parent)) for part in layout.parts]
        for name in sorted(set.intersection(*(set(part.names()) for part in parts))) if parts else ():
            known = []
            for part in parts:
                with suppress(CheckpointError):  # it has been named, or has been removed meanwhile
                    known.append((part.folder / name, part.read(name).facts()))
            complete = len(known) == layout.size
            if known and (wrong := apart([facts for _, facts in known], complete)):
                self.found.damaged.append(f"{known[wrong[0]][0]}: {wrong[1]}")
            for path, facts in known:
                if facts["number"] and not (path.parents[1] / ABOUT).exists():
                    self.found.damaged.append(f"{path.parents[1] / ABOUT}: is missing")
                    return

    def _records(self, folder: RunFolder | None, batch_index: int, records: Mapping[str, Any]) -> None:
        """Checks the files that grow, by what the newest checkpoint, or the end of the run, knows of them."""
        path, found = self.path, self.found
        result = folder.about.result if folder and (path / SUMMARY).exists() else None
        known = result.metrics if result else records.get("metrics")
        if known is not None or (path / METRICS).exists():
            prefix = None if known is None else typed(dict(known), path / METRICS, Prefix)
            found.small(path / METRICS, lambda: MetricsFile(path).check(prefix))
        if folder and folder.config.pipeline.order == "arrival":
            found.small(path / ORDER, lambda: OrderFile(path).checked(batch_index, records))

    def _derived(self) -> None:
        folders = [self.path / "buckets", self.path / "names", *sorted((self.path / "encoded").glob("[0-9]*"))]
        for folder in filter(Path.is_dir, folders):
            manifest = folder / DERIVED[folder.name if folder.name in DERIVED else "encoded"]
            files = self.found.small(manifest, partial(_derived_files, manifest))
            self._files(folder, files or {})

    def _others(self, about: About | None) -> None:
        known = {ABOUT, CONFIG, LOG, METRICS, ORDER, SUMMARY, SAVED, ".lock", FOLDER, TABLES, NODES, *DERIVED}
        known |= set(about.files) if about else set()
        others = sorted(set(os.listdir(self.path)) - known)
        if others:
            self.found.unchecked.append(f"{self.path}: {', '.join(others)}: nothing of the run depends on them")


def _check_named(read: Callable[[], str | None], checkpoints: Checkpoints | None, path: Path) -> None:
    """Raises CheckpointError if a file, which `read` reads, names none of the checkpoints, if these are here."""
    name = read()
    while name and checkpoints and name not in checkpoints.names():
        before, name = name, read()
        if name == before:  # else the run is training, and names another one
            raise CheckpointError(f"names checkpoint {name}, which is not there", path)


def _derived_files(manifest: Path) -> Mapping[str, DescribedFile]:
    return derived_files(read_derived(manifest), manifest)


def _size(path: Path) -> int:
    """Bytes that will be read, or some more: of page files those that no checkpoint refers to are not."""
    sizes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                sizes += os.lstat(os.path.join(folder, name)).st_size
    return sizes
