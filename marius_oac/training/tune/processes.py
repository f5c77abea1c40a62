"""The processes of the trials that run now.

Guarantees:
- One thread, which waits for all processes at once (`wait`); evaluations are read from the runs' metrics, which nothing
  announces, every `LOOK_SECONDS`.
- When the block of `Processes` is left, however, none runs: each was asked to stop, and has written a checkpoint. Each
  is killed with this process.
- Each trial has processors of its own.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

import psutil

from marius_oac.nodes.launch.parent import PARENT, bound
from marius_oac.runs.folder.metrics import MetricsFile
from marius_oac.runtime.files.atomic import open_own
from marius_oac.runtime.machine.cgroups import free_memory
from marius_oac.runtime.signals import woken_by_signals
from marius_oac.training.tune.request import Request
from marius_oac.training.tune.trials import Trial, TrialsFolder

LOOK_SECONDS = 0.5
_KEPT_FREE = 1.1  # times the largest process so far


class Running:
    """A trial whose process runs.

    Attributes:
        stopped: the trial as it was when the others' results said that it should stop; its process may have gone on.
        ended: a descriptor that is readable when its process has ended.
    """

    def __init__(self, trial: Trial, process: subprocess.Popen[bytes], slot: int, metric: str):
        self.trial, self.process, self.slot = trial, process, slot
        self.stopped: Trial | None = None
        self.ended = os.pidfd_open(process.pid)
        self._metric, self._size, self._before, self._started = metric, 0, trial.seconds, time.monotonic()

    def stop(self) -> None:
        """Asks for an end with a checkpoint."""
        self.process.send_signal(signal.SIGINT)

    def close(self) -> int:
        """Waits for its end; returns its exit code, negative for a signal."""
        os.close(self.ended)
        return self.process.wait()

    def look(self, metrics: MetricsFile) -> bool:
        """Reads evaluations that are new; whether there are."""
        try:
            size = os.stat(metrics.path).st_size
        except FileNotFoundError:
            return False
        if size == self._size:
            return False
        self._size = size
        found = (line for line in metrics.lines() if line["kind"] == "evaluation" and line["split"] == "valid")
        curve = tuple((line["epoch"] + 1, line[self._metric]) for line in found if line[self._metric] is not None)
        changed = curve != self.trial.curve
        self.trial = self.trial.model_copy(update={"curve": curve, "seconds": self.seconds})
        return changed

    @property
    def seconds(self) -> float:
        """Since it began, without pauses of the search."""
        return self._before + time.monotonic() - self._started


class Processes:
    """Starts and watches them; at most `slots` at once."""

    def __init__(self, folder: TrialsFolder, metric: str, slots: int):
        cpus = sorted(os.sched_getaffinity(0))
        self._folder, self._metric, self._largest = folder, metric, 0
        self._cpus = [frozenset(cpus[slot::slots]) for slot in range(slots)]
        self.running: list[Running] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.running:
            each.stop()
        for each in self.running:
            each.close()

    def room(self) -> bool:
        """Whether another may start: a slot is free and, as far as is known, memory for it."""
        if not self.running:
            return True
        return len(self.running) < len(self._cpus) and 0 < self._largest * _KEPT_FREE < free_memory()

    def start(self, trial: Trial, config: str, overrides: tuple[str, ...]) -> None:
        """Starts a trial, or goes on with it."""
        slot = min({*range(len(self._cpus))} - {each.slot for each in self.running})
        request = Request(config, overrides, str(self._folder.run(trial.number)), self._cpus[slot])
        text = json.dumps(asdict(request) | {"cpus": sorted(request.cpus)})
        with open(self._folder.file(trial.number, "log"), "ab", opener=open_own) as log:
            process = subprocess.Popen(
                bound([sys.executable, "-P", "-m", "marius_oac.training.tune.child", text]), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, env={**os.environ, PARENT: str(os.getpid())},
            )  # fmt: skip
        self.running.append(Running(trial, process, slot, self._metric))

    def wait(self) -> tuple[list[Running], list[Running]]:
        """Waits until a trial has ended or has new evaluations; returns those that have ended, which are forgotten,
        and those that go on and have new ones."""
        while True:
            with selectors.DefaultSelector() as selector, woken_by_signals(selector):
                for each in self.running:
                    selector.register(each.ended, selectors.EVENT_READ)
                selector.select(LOOK_SECONDS)
            ended = [each for each in self.running if each.process.poll() is not None]
            looked = [each for each in self.running if each.look(self._metrics(each))]
            self._largest = max([self._largest, *self._sizes()])
            for each in ended:
                self.running.remove(each)
                each.close()
            news = [each for each in looked if each not in ended]
            if ended or news or (self.running and self.room()):
                return ended, news

    def _metrics(self, one: Running) -> MetricsFile:
        return MetricsFile(self._folder.run(one.trial.number))

    def _sizes(self) -> Iterator[int]:
        """Memory of the processes that have evaluated, and so have all that they will."""
        for each in self.running:
            if each.trial.curve:
                try:
                    yield psutil.Process(each.process.pid).memory_info().rss
                except psutil.NoSuchProcess:
                    continue
