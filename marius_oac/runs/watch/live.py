"""A run's history as it grows: what is new is read, and nothing twice."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from marius_oac.runs.folder.metrics import METRICS
from marius_oac.runs.report.history import READ, Lines, open_run
from marius_oac.runs.watch.tail import Tail


class LiveRun:
    """A run that may be training, be killed, be resumed and end while it is watched.

    Attributes:
        history: as it was when it was last read.
        version: counts the times that something was new.

    Raises:
        CheckpointError, ConfigError: as `read_history`.
    """

    def __init__(self, path: Path):
        self._path = path
        self._tail = Tail(path / METRICS)
        self._lines = Lines(path / METRICS)
        self._seen: Mapping[str, object] = {}
        self.version = 0
        self.read()

    def read(self) -> None:
        """Reads what has changed. Raises what `read_history` does."""
        rewound, lines = self._tail.read()
        if rewound:
            self._lines = Lines(self._path / METRICS)
        for line in lines:
            self._lines.add(line)
        seen = {name: _state(self._path / name) for name in READ if name != METRICS}
        if rewound or seen != self._seen:
            self.history = self._lines.history(open_run(self._path))
            self._seen = seen
            self.version += 1
        elif lines:
            self.version += 1

    @property
    def has_ended(self) -> bool:
        """Whether the run has its results; a run that is resumed has none until it ends again."""
        return bool(self.history.summary)

    def age(self) -> float | None:
        """Seconds since the run last wrote a line; None: it has written none."""
        try:
            return max(0.0, time.time() - os.stat(self._path / METRICS).st_mtime)
        except OSError:
            return None


def _state(path: Path) -> object:
    """What changes with a file's content; None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
