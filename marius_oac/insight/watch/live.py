"""A run's history as it grows."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from marius_oac.insight.report.history import READ, read_history
from marius_oac.runs.folder.metrics import METRICS

TIMES = 20
"""Looks are at least this many times the processor time apart that the last one took."""


class LiveRun:
    """A run that may be training, be killed, be resumed and end while it is watched.

    Attributes:
        history: as it was when it was last read.

    Raises:
        CheckpointError, ConfigError: as `read_history`.
    """

    def __init__(self, path: Path, every: float):
        self._path, self._every = path, every
        self._looked, self._pause = time.process_time(), threading.Event()  # which nobody sets
        self._seen = self._state()
        self.history = read_history(path)

    def wait(self) -> bool:
        """Waits `every` seconds, or longer where looks are dear; then reads the run anew if a file has changed, and
        returns whether one has. Raises what `read_history` does."""
        self._pause.wait(max(self._every, TIMES * (time.process_time() - self._looked)))
        self._looked = time.process_time()
        seen = self._state()
        if seen == self._seen:
            return False
        self._seen, self.history = seen, read_history(self._path)
        return True

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

    def _state(self) -> list[object]:
        """What changes with the content of the run's files."""
        found: list[object] = []
        for name in READ:
            try:
                file = os.stat(self._path / name)
                found.append((file.st_ino, file.st_size, file.st_mtime_ns))
            except OSError:
                found.append(None)
        return found
