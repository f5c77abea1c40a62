"""Measures the time of each stage and, on request, writes a trace of every event.

Guarantees:
- `stage` may be used by any number of threads at once; each worker has its own track in the trace.
- The trace is streamed to its file, in bounded memory, and is valid JSON once closed, also after an error.
- Without a trace an event costs about two microseconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import IO, Self

from marius_oac.runtime.closing import Closable
from marius_oac.runtime.files.atomic import disk_errors
from marius_oac.runtime.standstill import Activity


class Telemetry(Closable):
    """Counts busy seconds per stage since the last `take`; writes Chrome trace events if `trace` is a path.

    The trace opens in ui.perfetto.dev: one track per worker, and per stage of a device, one slice per batch.
    """

    def __init__(self, trace: Path | None = None):
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = defaultdict(float)
        self._total: dict[str, float] = defaultdict(float)
        self._tracks: dict[str, int] = {}
        self._start = time.perf_counter()
        self._trace, self._file = trace or Path(), None
        if trace:
            with disk_errors(trace):
                self._file = open(trace, "x", encoding="utf-8")  # noqa: SIM115 - closed by close()
                self._file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                named = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "marius-oac"}}
                self._file.write(json.dumps(named))

    def stage(self, name: str, batch_index: int) -> Stage:
        """A context that times stage `name` of batch `batch_index`."""
        return Stage(self, name, batch_index)

    def take(self) -> dict[str, float]:
        """Busy seconds per stage, over all its workers, since the last call."""
        with self._lock:
            taken, self._seconds = dict(self._seconds), defaultdict(float)
            return taken

    def total(self) -> dict[str, float]:
        """Busy seconds per stage since the start."""
        with self._lock:
            return dict(self._total)

    def record(self, name: str, batch_index: int, begin: float, end: float, track: str | None = None) -> None:
        """Counts the time between two values of `time.perf_counter`, in seconds, for a stage and a batch.

        `track` names the track of the trace; None takes that of the calling thread.
        """
        with self._lock:
            self._seconds[name] += end - begin
            self._total[name] += end - begin
            if self._file:
                with disk_errors(self._trace):
                    self._write(self._file, name, batch_index, begin, end, track or threading.current_thread().name)

    def close(self) -> None:
        """Ends the trace. Raises InputError where the disk is full."""
        with self._lock:
            file, self._file = self._file, None
            if file:
                with disk_errors(self._trace), file:
                    file.write("\n]}\n")

    def _write(self, file: IO[str], name: str, batch_index: int, begin: float, end: float, of: str) -> None:
        track = self._tracks.get(of)
        if track is None:
            track = self._tracks[of] = len(self._tracks) + 1
            named = {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": of}}
            file.write(",\n" + json.dumps(named))
        file.write(
            f',\n{{"ph": "X", "pid": 1, "tid": {track}, "name": {json.dumps(name)}, '
            f'"ts": {(begin - self._start) * 1e6:.3f}, "dur": {(end - begin) * 1e6:.3f}, '
            f'"args": {{"batch": {batch_index}}}}}'
        )


class NoTelemetry(Telemetry):
    """Measures nothing, which costs a tenth of a microsecond."""

    def __init__(self) -> None:
        super().__init__()
        self._nothing = _Nothing(self, "", 0)

    def stage(self, name: str, batch_index: int) -> Stage:
        """See `Telemetry.stage`."""
        return self._nothing

    def record(self, name: str, batch_index: int, begin: float, end: float, track: str | None = None) -> None:
        """See `Telemetry.record`."""


class Stage(Activity):
    """Times one stage of one batch, from when it is made; see `Telemetry.stage`."""

    __slots__ = ("_telemetry", "_name", "_batch_index")

    def __init__(self, telemetry: Telemetry, name: str, batch_index: int):
        self._telemetry, self._name, self._batch_index = telemetry, name, batch_index
        self.since = time.perf_counter()

    def began(self, at: float) -> None:
        """Excludes the time before `at`, a value of `time.perf_counter`, as waiting."""
        self.since = max(self.since, at)

    def told(self) -> str:
        """See `Activity.told`."""
        return f"stage {self._name} holds batch {self._batch_index:,}"

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        self._telemetry.record(self._name, self._batch_index, self.since, time.perf_counter())


class _Nothing(Stage):
    def __enter__(self) -> Self:
        return self

    def began(self, at: float) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...
