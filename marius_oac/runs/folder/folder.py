"""A run's folder.

    config.yaml        the resolved configuration
    run.json           what the run is: see `folder.about`
    log.json           of a click log: its files
    metrics.jsonl      one line per step interval, epoch and evaluation
    order.npy          the computation order, where it is not the plan's
    summary.json       the results, once the run has ended
    saved.json         the newest checkpoint that was saved, see `checkpoints`
    trace.json         with --trace
    checkpoints/       see `checkpoint`
    tables/            of rows on disk: the page files, and where they are

A folder belongs to one process at a time (a lock that dies with the process); reading it needs no lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marius_oac.config.dense import check_change
from marius_oac.config.errors import read_mapping
from marius_oac.config.task import TaskConfig, build_config
from marius_oac.data.graphs import identity
from marius_oac.data.logs.run_log import LOG
from marius_oac.errors import CheckpointError, ConfigError, InputError, shown
from marius_oac.runs.arithmetic import Arithmetic
from marius_oac.runs.checkpoints.checkpoint import Checkpoint, name_of
from marius_oac.runs.checkpoints.origin import new_token
from marius_oac.runs.checkpoints.parts import NODES, identity_of, open_whole, parts_of
from marius_oac.runs.checkpoints.pins import Missing
from marius_oac.runs.checkpoints.retention import SAVED, Checkpoints, read_saved, saved_bytes, write_saved
from marius_oac.runs.folder.about import ABOUT, VERSION, About, Result, decisive, differences
from marius_oac.runs.folder.metrics import METRICS, MetricsFile
from marius_oac.runs.folder.order import OrderFile
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import (
    appearing,
    check_no_link,
    clean,
    disk_errors,
    json_text,
    make_folder,
    open_own,
    remove_file,
    sync,
    write_atomically,
    write_flushed,
)
from marius_oac.runtime.files.untrusted import parse_json, read_bounded, read_if_there
from marius_oac.runtime.resuming import check_new_run
from marius_oac.types import present

CONFIG, SUMMARY, TRACE = "config.yaml", "summary.json", "trace.json"
_FILES = (
    r"config\.yaml|run\.json|log\.json|classes\.json|metrics\.jsonl|order\.npy|summary\.json|saved\.json|metrics\.prom"
)
_FOLDERS = r"buckets|encoded-[a-z0-9_]{8}"
"""Finished names of what is written into a run's folder while it is locked."""
_KEPT = ("checkpoints", "tables", "nodes", "encoded", "buckets")
"""Folders within it that are written and removed in."""


class RunFolder:
    """The folder of a run, from `create` or `open`. Enter it to hold its lock while training.

    Attributes:
        metrics: its `metrics.jsonl`.
        order: its `order.npy`.
    """

    def __init__(self, path: Path, config: TaskConfig, about: About):
        self.path, self.config, self.about = path, config, about
        self.checkpoints = Checkpoints(path / "checkpoints", run=about.id, part="")
        self.metrics, self.order = MetricsFile(path), OrderFile(path)
        self.rows = path
        """Where rows and their checkpoints lie."""
        self._learned: dict[str, str] = {}
        self._lock: ExitStack | None = None

    def keep_rows_in(self, folder: Path) -> None:
        """Puts rows and their checkpoints in this folder, which is made if it is missing."""
        check_no_link(folder, self.path)
        new = not folder.exists()
        with disk_errors(folder):
            make_folder(folder)
        if new:
            write_saved(folder, "")
        self.rows = folder
        self.checkpoints = Checkpoints(folder / "checkpoints", run=self.about.id, part=identity_of(folder))
        _clean(folder)

    @staticmethod
    def check_new(path: Path) -> None:
        """Raises InputError if `path` exists."""
        check_new_run(path)

    @classmethod
    def create(
        cls,
        path: Path,
        config: TaskConfig,
        fingerprint: str,
        files: Mapping[str, str] = MappingProxyType({}),
        over_nodes: bool = False,
        id: str | None = None,
    ) -> RunFolder:
        """Makes the folder with its first files, `files` among them, under a temporary name first.

        Args:
            id: of the run, if other nodes have parts of it.

        Raises InputError if it exists or can't be made.
        """
        cls.check_new(path)
        about = _new_about(path, config, fingerprint, files, over_nodes, id)
        with appearing(path) as temporary:
            (temporary / "checkpoints").mkdir(parents=True)
            for name, text in {**files, CONFIG: config.dump()}.items():
                write_flushed(temporary / name, text.encode())
            write_flushed(temporary / SAVED, saved_bytes(""))
            write_flushed(temporary / ABOUT, about.dump())
        return cls(path, config, about)

    @classmethod
    def written_anew(
        cls, path: Path, config: TaskConfig, fingerprint: str, files: Mapping[str, str], id: str
    ) -> RunFolder:
        """Writes the first files of a node's part that has lost its `run.json`. Raises CheckpointError, and writes
        nothing, if its checkpoints are not those of the run with this id."""
        checkpoints = Checkpoints(path / "checkpoints", run=id, part=identity_of(path))
        for name in checkpoints.names():
            checkpoints.read(name)
        folder = cls(path, config, _new_about(path, config, fingerprint, files, True, id))
        with disk_errors(path / SUMMARY):
            remove_file(path / SUMMARY)  # run.json had its digest
        folder.write_config(config, files)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Opens a run. Raises CheckpointError if there is none, or a damaged one, or one of another program or version;
        ConfigError if a key of its config.yaml that decides bits is not as the run was trained with."""
        path = Path(path)
        about, source = About.read(path), path / CONFIG
        tree, lines = read_mapping(source, "data: {path: ...}")
        config = build_config(tree, source=str(source), lines=lines)
        about.check_config(config, str(source), lines)
        return cls(path, config, about)

    def check_resumable(self, config: TaskConfig, fingerprint: str) -> None:
        """Raises InputError, with the key, if the run can't continue with this configuration or this data."""
        for key, old, new in differences(decisive(self.config), decisive(config)):
            raise ConfigError(f"the run was trained with {shown(old)}; it can't go on with {shown(new)}", key)
        check_change(self.config, config)
        if self.config.storage.path != config.storage.path:
            raise ConfigError(f"the run's rows lie in {list(self.config.storage.path)}", "storage.path")
        if not config.data_grows:  # else `folder.log` checks the files
            self.check_data(fingerprint, config)

    def check_data(self, fingerprint: str, config: TaskConfig) -> None:
        """Raises CheckpointError, with the key's value, if the data are others than the run was trained on.

        `fingerprint`: of all of them, or of some; see `data.identity`.
        """
        mine = identity.parted(self.about.data)
        for key, found in identity.parted(fingerprint).items():
            if found != mine.get(key):
                section, name = key.split(".")
                singular = {"path": "this is another graph", "order": "this is another order"}
                these = singular.get(name, f"these are other {name}")
                raise CheckpointError(f"{these} than the run was trained on", getattr(getattr(config, section), name))

    def flushed_records(self, batch_index: int) -> dict[str, Any]:
        """Flushes metrics.jsonl and order.npy to the disk, and returns what a checkpoint before batch `batch_index`
        records of them, as plain values."""
        records: dict[str, Any] = {"metrics": self.metrics.flushed(batch_index).model_dump()}
        if self.config.pipeline.order == "arrival":
            records |= self.order.records(batch_index)
        return records

    def has_saved(self) -> bool:
        """Whether the run has ever saved a checkpoint; where `saved.json` is lost, as far as other files show it."""
        saved = read_saved(self.rows)
        if saved is not None:
            return bool(saved)
        evaluated = any(line["kind"] == "evaluation" and line.get("split") == "valid" for line in self.metrics.lines())
        return bool(self.summary()) or evaluated  # what is evaluated was saved before

    def note_saved(self, batch_index: int) -> None:
        """Records that every process has saved its checkpoint; called before an older one is removed. A run over nodes
        records it outside its parts as well, which may all be lost."""
        for folder in {self.path, self.rows}:
            write_saved(folder, name_of(batch_index))

    def rewind(
        self,
        batch_index: int,
        records: Mapping[str, Any] = MappingProxyType({}),
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Drops what was written after batch `batch_index - 1`, so that the files of a resumed run are consistent;
        warns if metrics.jsonl has changed.

        Args:
            records: what `flushed_records` gave for the checkpoint that the run goes on from.
            wait: returns when all processes of the run are about to drop theirs.

        Raises:
            CheckpointError: the order is damaged; nothing is dropped.
            InputError: another process reads a later checkpoint; nothing is dropped.
        """
        recorded = self.config.pipeline.order == "arrival"
        order = self.order.checked(batch_index, records) if recorded else None
        with self.checkpoints.alone_after(batch_index):
            there = name_of(batch_index) in self.checkpoints.names()
            for folder in {self.path, self.rows}:
                if (read_saved(folder) or "") > name_of(batch_index):
                    write_saved(folder, name_of(batch_index) if there else "")
            wait()
            with disk_errors(self.path / SUMMARY):
                remove_file(self.path / SUMMARY)
                sync(self.path)  # before the checkpoint that it is about is removed
            self.checkpoints.drop_after(batch_index)
        kept = self.metrics.rewind(batch_index).model_dump()
        if kept != records.get("metrics", kept):
            what = "is not what it was at this checkpoint: lines are missing, or have been changed"
            logger.warning(f"{self.path / METRICS}: {what}")
        if order is not None:
            self.order.write(order)

    def write_config(self, config: TaskConfig, files: Mapping[str, str] = MappingProxyType({})) -> None:
        """Writes the configuration that the run continues with, and the task's own files; warns if the user's code has
        changed."""
        if LOG in files:
            write_atomically(self.path / LOG, files[LOG])
        # A kill in between does no harm: run.json has the digests of the old and the new versions of all these files.
        write_atomically(self.path / CONFIG, config.dump())
        self._write_about(_about(self.about, self.path, config, files))
        for name, text in files.items():
            path = self.path / name
            if name.endswith(".py") and path.exists() and path.read_bytes() != text.encode():
                logger.warning(f"{name} has changed since it was last trained; the run keeps the new one")
            write_atomically(path, text)

    def write_learned(self, files: Mapping[str, str]) -> None:
        """Writes those of the task's files that have changed, which have checksums of their own; called before a
        checkpoint depends on them."""
        for name, text in files.items():
            if self._learned.get(name) != text:
                write_atomically(self.path / name, text)
        self._learned = dict(files)

    def note_arithmetic(self, here: Arithmetic) -> None:
        """Records what the run began with; warns if it goes on where a batch has other bits."""
        began = self.about.arithmetic
        if began is None:
            self._write_about(self.about.model_copy(update={"arithmetic": here}))
        elif not here.computes_as(began):
            logger.warning(
                f"other bits are to be expected here than where this run began ({here.unlike(began)}): "
                "the last bits may differ from those of an uninterrupted run"
            )

    def _write_about(self, about: About) -> None:
        write_atomically(self.path / ABOUT, about.dump())
        self.about = about

    def read_file(self, name: str) -> bytes:
        """A file of the task's own. Raises CheckpointError if it is missing, or not what was written."""
        path = self.path / name
        try:
            content = read_bounded(path, error=CheckpointError)
        except OSError as error:
            raise CheckpointError(f"can't be read: {error.strerror}", path) from None
        if hashlib.sha256(content).hexdigest() not in self.about.files.get(name, ()):
            raise CheckpointError("is damaged: it is not what was written", path)
        return content

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes the results of a run that has ended."""
        text = json_text(summary, indent=1) + "\n"
        result = Result(summary=hashlib.sha256(text.encode()).hexdigest(), metrics=self.metrics.flushed())
        self._write_about(self.about.model_copy(update={"result": result}))
        write_atomically(self.path / SUMMARY, text)

    def new_trace(self) -> Path:
        """Removes `trace.json`, if it is there, and returns its path."""
        with disk_errors(self.path / TRACE):
            remove_file(self.path / TRACE)
        return self.path / TRACE

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`; empty while the run has not ended. Raises CheckpointError if it is damaged."""
        path, about = self.path / SUMMARY, self.about
        while True:
            content = read_if_there(path, CheckpointError)
            if content is None:
                return {}
            digest = hashlib.sha256(content).hexdigest()
            if digest == getattr(about.result, "summary", None):
                return parse_json(content, path, dict[str, Any], CheckpointError, nan=True)
            before, about = about, About.read(self.path)  # the run may have ended since they were read
            if about == before:
                raise CheckpointError("is damaged: it is not what was written", path)

    def checkpoint(self, name: str | None = None, same: Checkpoint | None = None) -> Checkpoint:
        """The named checkpoint ("best": the best one); by default the one that the summary is about, or the newest.

        It is pinned: a run that is training does not remove it. `same`: see `Checkpoint.verify`.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        while True:
            before = self._offer(name)
            chosen = self.summary().get("checkpoint") if name is None else name
            try:
                if self.over_nodes:
                    return open_whole(self.path, self.about.id, chosen)
                return self.checkpoints.open(chosen, pinned=True, same=same)
            except Missing:
                if self._offer(name) == before:
                    raise

    def _offer(self, name: str | None) -> Any:
        """The checkpoints to choose from, as a value to compare: equal as long as none has changed."""
        parts = parts_of(self.path) if self.over_nodes else [self.checkpoints]
        there = [(part.folder, part.names(), part.best() if name == "best" else None) for part in parts]
        return self.summary().get("checkpoint"), there

    @property
    def over_nodes(self) -> bool:
        """Whether the run was trained over nodes; each has a part of its checkpoints, wherever they are now."""
        return self.about.over_nodes or (self.path / NODES).is_dir()

    def __enter__(self) -> RunFolder:
        with ExitStack() as stack:
            try:
                lock = open_own(self.path / ".lock", os.O_RDWR)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError("another process is training in this folder", self.path) from None
            except OSError as error:
                raise InputError(f"can't be locked: {error.strerror}", self.path) from None
            _clean(self.path)
            self._lock = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        present(self._lock).close()


def _clean(folder: Path) -> None:
    """Removes what a killed process left unfinished. Raises InputError if a folder that is written and removed in is
    a symbolic link."""
    for name in _KEPT:
        check_no_link(folder / name)
    clean(folder, _FILES, _FOLDERS)
    Checkpoints(folder / "checkpoints").clean()


def _new_about(
    path: Path, config: TaskConfig, fingerprint: str, files: Mapping[str, str], over_nodes: bool, id: str | None
) -> About:
    about = About(
        id=id or new_token(), data=fingerprint, over_nodes=over_nodes,
        path="", base="", config={},
    )  # fmt: skip
    return _about(about, path, config, files)


def _about(about: About, path: Path, config: TaskConfig, files: Mapping[str, str]) -> About:
    """Adds the present configuration and files to what `run.json` records; `log.json` has a checksum of its own."""
    here = {"version": VERSION, "path": str(path.resolve()), "base": os.getcwd()}
    now = about.model_copy(update={**here, "config": decisive(config)})
    return now.with_files({name: text for name, text in files.items() if name != LOG})
