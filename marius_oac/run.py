"""A run's folder.

    config.yaml        the resolved configuration
    run.json           format and package version, the data's fingerprint
    log.json           of a click log: its files
    metrics.jsonl      one line per step interval, epoch and evaluation
    order.npy          the computation order, where it is not the plan's
    summary.json       the results, once the run has ended
    trace.json         with --trace
    checkpoints/       see `checkpoint`
    tables/            of rows on disk: the page files, and where they are

A folder belongs to one process at a time (a lock that dies with the process); reading it needs no lock.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np

from marius_oac import __version__, blas
from marius_oac.checkpoint import Checkpoint, Checkpoints
from marius_oac.config import Config
from marius_oac.config_base import BaseConfig
from marius_oac.data import identity
from marius_oac.errors import CheckpointError, ConfigError, InputError
from marius_oac.files import clean, disk_errors, make_folder, sync, unfinished, write_atomically, write_flushed
from marius_oac.node_saved import NODES, open_whole

FORMAT, VERSION = "marius-oac run", 1
ORDER = "order.npy"

_MAY_CHANGE = ("device", "threads", "binding", "training.epochs", "training.early_stopping", "evaluation", "checkpoint",
               "metrics", "pipeline.in_flight", "pipeline.workers", "pipeline.link", "data.path", "data.train",
               "data.valid", "data.test", "data.labels", "encoder.features", "training.progressive", "keys.capacity",
               "storage.memory", "storage.io", "storage.depth", "storage.look_ahead", "nodes.packing", "nodes.load",
               "nodes.mode", "nodes.switch", "nodes.modes", "nodes.auto")  # fmt: skip


class RunFolder:
    """An existing run. Use `create` or `open`; enter it to hold its lock while training."""

    def __init__(self, path: Path, config: BaseConfig, fingerprint: str, kernels: str):
        self.path, self.config, self.fingerprint, self.kernels = path, config, fingerprint, kernels
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.rows = path
        """Where rows and their checkpoints lie."""
        self._lock = None

    def keep_rows_in(self, folder: Path) -> None:
        """Rows and their checkpoints lie in this folder, which is made if it is not there."""
        with disk_errors(folder):
            make_folder(folder / "checkpoints")
        for each in (folder, folder / "checkpoints"):
            clean(each)
        self.rows, self.checkpoints = folder, Checkpoints(folder / "checkpoints")

    @staticmethod
    def check_new(path: Path) -> None:
        """Raises InputError where there is something already."""
        if os.path.lexists(path):
            raise InputError("exists already; choose another --out, or go on with: marius-oac resume", path)

    @classmethod
    def create(
        cls, path: Path, config: BaseConfig, fingerprint: str, files: Mapping[str, str] = MappingProxyType({})
    ) -> RunFolder:
        """Makes the folder with its first files, `files` among them, under a temporary name first.

        Raises InputError where it exists or can't be made.
        """
        cls.check_new(path)
        temporary = unfinished(path)
        about = {"format": FORMAT, "version": VERSION, "package": __version__, "data": fingerprint}
        about["kernels"] = blas.kernels()
        with disk_errors(path):
            try:
                shutil.rmtree(temporary, ignore_errors=True)
                make_folder(path.parent)
                (temporary / "checkpoints").mkdir(parents=True)
                for name, text in {
                    **files,
                    "config.yaml": config.dump(),
                    "run.json": json.dumps(about, indent=1),
                }.items():
                    write_flushed(temporary / name, text.encode())
                sync(temporary)
                os.rename(temporary, path)
                sync(path.parent)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        return cls(path, config, fingerprint, about["kernels"])

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Raises CheckpointError where there is no run, or one of another program or version."""
        path = Path(path)
        try:
            about = json.loads((path / "run.json").read_text("utf-8"))
            if about["format"] != FORMAT:
                raise ValueError
            if about["version"] != VERSION:
                raise CheckpointError(
                    f"is of format version {about['version']}, this program reads {VERSION}", path / "run.json"
                )
            config = Config.load(path / "config.yaml")
            return cls(path, config, about["data"], about["kernels"])
        except (FileNotFoundError, NotADirectoryError):
            reason = "is no run: it has no run.json" if path.exists() else "there is no such run"
            raise CheckpointError(reason, path) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError("is damaged, or belongs to something else", path / "run.json") from None

    def check_resumable(self, config: BaseConfig, fingerprint: str) -> None:
        """Raises where the run can't go on with this configuration or graph, naming the key."""
        for key, old, new in _differences(self.config.model_dump(mode="json"), config.model_dump(mode="json")):
            if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in _MAY_CHANGE):
                raise ConfigError(f"the run was trained with {old!r}; it can't go on with {new!r}", key)
        if config.task != "ctr":  # a click log has other files every day; `run_log` looks after them
            self.check_data(fingerprint, config)
        if self.kernels != blas.kernels():
            sys.stderr.write(
                f"note: matrix products run on {blas.kernels()} kernels here, on {self.kernels} when this run began: "
                "the last bits may differ from those of an uninterrupted run\n"
            )

    def check_data(self, fingerprint: str, config: BaseConfig) -> None:
        """Raises CheckpointError, with the key's value, where the data are others than the run was trained on.

        `fingerprint`: of all of them, or of some; see `data.identity`.
        """
        mine = identity.parted(self.fingerprint)
        for key, found in identity.parted(fingerprint).items():
            if found != mine.get(key):
                section, name = key.split(".")
                these = {"path": "this is another graph", "labels": "these are other labels"}.get(
                    name, f"these are other {name}"
                )
                raise CheckpointError(f"{these} than the run was trained on", getattr(getattr(config, section), name))

    def log(self, line: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with disk_errors(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, each with `kind` and `batch`; a last one that was torn by a kill is left out.

        Raises CheckpointError where another line is damaged.
        """
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # what has no end is torn
        parsed = []
        for number, line in enumerate(lines, 1):
            try:
                parsed.append(_metrics_line(line))
            except ValueError:
                raise CheckpointError("is damaged; without this line the run can go on", f"{path}:{number}") from None
        return parsed

    def rewind(self, sequence: int) -> None:
        """Drops what was written after batch `sequence - 1`, so that the files of a resumed run tell one story.

        An evaluation at the end of that batch goes too: it is made again. Raises CheckpointError, and drops nothing,
        where a file is damaged.
        """
        kept = [line for line in self.metrics() if line["batch"] < sequence - (line["kind"] == "evaluation")]
        recorded = self.config.pipeline.order == "arrival"
        order = self.order() if recorded else None
        if recorded and len(order) < sequence:
            raise CheckpointError(f"holds {len(order):,} batches, {sequence:,} are expected", self.path / ORDER)
        (self.path / "summary.json").unlink(missing_ok=True)
        self.checkpoints.drop_after(sequence)
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        if recorded:
            self._write_order(order[:sequence])

    def append_order(self, order: list[int]) -> None:
        """Adds the numbers of the batches of a segment, in the order in which they were computed."""
        self._write_order(np.concatenate((self.order(), np.array(order, np.int64))))

    def order(self) -> np.ndarray:
        """The recorded computation order, int64 [batches]. Raises CheckpointError where it can't be read."""
        try:
            return np.load(self.path / ORDER, allow_pickle=False)
        except FileNotFoundError:
            return np.empty(0, np.int64)
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(f"can't be read: {error}", self.path / ORDER) from None

    def _write_order(self, order: np.ndarray) -> None:
        content = io.BytesIO()
        np.save(content, order)
        write_atomically(self.path / ORDER, content.getvalue())

    def write_config(self, config: BaseConfig, files: Mapping[str, str] = MappingProxyType({})) -> None:
        """The configuration that the run goes on with, and the task's own files; says where the user's code is another
        than the run began with."""
        for name, text in files.items():
            path = self.path / name
            if name.endswith(".py") and path.exists() and path.read_text("utf-8") != text:
                sys.stderr.write(f"note: {name} has changed since it was last trained; the run keeps the new one\n")
            write_atomically(path, text)
        write_atomically(self.path / "config.yaml", config.dump())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=1) + "\n")

    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds; empty while the run has not ended. Raises CheckpointError if it is damaged."""
        path = self.path / "summary.json"
        try:
            return dict(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError):
            raise CheckpointError("is damaged", path) from None

    def checkpoint(self, name: str | None = None) -> Checkpoint:
        """The named checkpoint ("best": the best one); by default the one that the summary is about, or the newest.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        name = name or self.summary().get("checkpoint")
        return open_whole(self.path, name) if (self.path / NODES).is_dir() else self.checkpoints.open(name)

    def __enter__(self) -> RunFolder:
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(open(self.path / ".lock", "w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError("another process is training in this folder", self.path) from None
            except OSError as error:
                raise InputError(f"can't be locked: {error.strerror}", self.path) from None
            clean(self.path)
            if self.checkpoints.folder.is_dir():
                clean(self.checkpoints.folder)
            self._lock = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()


def _metrics_line(content: bytes) -> dict[str, Any]:
    line = json.loads(content)
    if not isinstance(line, dict) or "kind" not in line or not isinstance(line.get("batch"), int):
        raise ValueError
    return line


def _differences(old: Any, new: Any, path: str = ""):
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new
