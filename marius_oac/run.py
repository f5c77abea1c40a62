"""A run's folder.

    config.yaml        the resolved configuration
    run.json           format and package version, the graph's fingerprint
    metrics.jsonl      one line per step interval, epoch and evaluation
    order.npy          the computation order, where it is not the plan's
    summary.json       the results, once the run has ended
    trace.json         with --trace
    checkpoints/       see `checkpoint`

A folder belongs to one process at a time (a lock that dies with the process).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from marius_oac import __version__
from marius_oac.checkpoint import Checkpoints, write_atomically
from marius_oac.config import Config
from marius_oac.errors import CheckpointError, ConfigError, InputError

FORMAT, VERSION = "marius-oac run", 1

_MAY_CHANGE = ("device", "threads", "training.epochs", "training.early_stopping", "evaluation", "checkpoint", "metrics",
               "pipeline.in_flight", "pipeline.workers", "pipeline.link", "data.path")  # fmt: skip


class RunFolder:
    """An existing run. Use `create` or `open`; enter it to hold its lock while training."""

    def __init__(self, path: Path, config: Config, fingerprint: str):
        self.path, self.config, self.fingerprint = path, config, fingerprint
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock = None

    @classmethod
    def create(cls, path: Path, config: Config, fingerprint: str) -> RunFolder:
        """Makes the folder, under a temporary name first. Raises InputError where it exists or can't be made."""
        if os.path.lexists(path):
            raise InputError("exists already; choose another --out, or go on with: marius-oac resume", path)
        temporary = path.with_name(f".{path.name}.unfinished")
        about = {"format": FORMAT, "version": VERSION, "package": __version__, "graph": fingerprint}
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "checkpoints").mkdir(parents=True)
            (temporary / "config.yaml").write_text(config.dump(), "utf-8")
            (temporary / "run.json").write_text(json.dumps(about, indent=1), "utf-8")
            os.rename(temporary, path)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise InputError(f"can't be made: {error.strerror}", path) from None
        return cls(path, config, fingerprint)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Raises CheckpointError where there is no run, or one of another program or version."""
        path = Path(path)
        try:
            about = json.loads((path / "run.json").read_text("utf-8"))
            if about["format"] != FORMAT:
                raise ValueError
            if about["version"] != VERSION:
                raise CheckpointError(f"is of format version {about['version']}, this program reads {VERSION}", path)
            config = Config.load(path / "config.yaml")
            return cls(path, config, about["graph"])
        except FileNotFoundError:
            reason = "is no run: it has no run.json" if path.is_dir() else "there is no such run"
            raise CheckpointError(reason, path) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError("is damaged, or belongs to something else", path / "run.json") from None

    def check_resumable(self, config: Config, fingerprint: str) -> None:
        """Raises where the run can't go on with this configuration or graph, naming the key."""
        self.check_graph(fingerprint)
        for key, old, new in _differences(self.config.model_dump(mode="json"), config.model_dump(mode="json")):
            if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in _MAY_CHANGE):
                raise ConfigError(f"the run was trained with {old!r}; it can't go on with {new!r}", key)

    def check_graph(self, fingerprint: str) -> None:
        """Raises CheckpointError where the graph is not the one that the run was trained on."""
        if fingerprint != self.fingerprint:
            raise CheckpointError("this is another graph than the run was trained on", self.config.data.path)

    def log(self, line: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line that a killed process tore is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        parsed = []
        for line in lines:
            try:
                parsed.append(json.loads(line))
            except ValueError:
                break
        return parsed

    def rewind(self, sequence: int) -> None:
        """Drops what was written after batch `sequence - 1`, so that the files of a resumed run tell one story."""
        kept = [line for line in self.metrics() if line["batch"] < sequence]
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        (self.path / "summary.json").unlink(missing_ok=True)
        if (self.path / "order.npy").exists():
            self._write_order(self.order()[:sequence])

    def append_order(self, order: list[int]) -> None:
        """Adds the numbers of the batches of a segment, in the order in which they were computed."""
        self._write_order(np.concatenate((self.order(), np.array(order, np.int64))))

    def order(self) -> np.ndarray:
        """The recorded computation order, int64 [batches]."""
        path = self.path / "order.npy"
        return np.load(path, allow_pickle=False) if path.exists() else np.empty(0, np.int64)

    def _write_order(self, order: np.ndarray) -> None:
        temporary = self.path / ".order.unfinished"
        with open(temporary, "wb") as file:
            np.save(file, order)
        os.replace(temporary, self.path / "order.npy")

    def write_config(self, config: Config) -> None:
        """The configuration that the run goes on with."""
        write_atomically(self.path / "config.yaml", config.dump())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=1) + "\n")

    def __enter__(self) -> RunFolder:
        lock = open(self.path / ".lock", "w")  # noqa: SIM115 - held until __exit__
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise InputError("another process is training in this folder", self.path) from None
        self._lock = lock
        self.checkpoints.clean()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()


def _differences(old: Any, new: Any, path: str = ""):
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new
