"""The numbers of a pipeline that don't change its bits: batches in flight, and threads of each stage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from marius_oac.config.sections import PipelineConfig

STAGES = ("plan", "read", "upload", "download", "write")
"""Those with a number of threads."""
INSIDE = STAGES[1:]
"""Those that a batch passes while it is in flight: no more threads than batches find work there."""


@dataclass(frozen=True)
class Setting:
    """The window (batches in flight) and the threads of each stage."""

    window: int
    plan: int = 1
    read: int = 1
    upload: int = 1
    download: int = 1
    write: int = 1

    def threads(self, stage: str) -> int:
        """Threads of one of `STAGES`."""
        return int(getattr(self, stage))

    def with_threads(self, threads: Mapping[str, int]) -> Setting:
        """A copy with other numbers of threads."""
        return replace(self, **threads)

    def __str__(self) -> str:
        several = [f"{stage}={count}" for stage, count in asdict(self).items() if stage != "window" and count > 1]
        return " ".join((f"in_flight={self.window}", *several))


@dataclass(frozen=True)
class Limits:
    """Every setting lies between `least` and `most`, in each number."""

    least: Setting
    most: Setting

    @classmethod
    def of(cls, config: PipelineConfig) -> Limits:
        """Those of a configuration: both ends are one where nothing is `auto`, or where that is a fixed number."""
        if not config.adapts:
            config = config.with_fixed_numbers()
        workers = config.workers
        most = Setting(config.room, **{stage: config.most_workers(stage) for stage in STAGES})
        least = Setting(
            most.window if config.in_flight != "auto" else 1,
            **{stage: 1 if getattr(workers, stage) == "auto" else most.threads(stage) for stage in STAGES},
        )
        return cls(least, most)

    @property
    def adapt(self) -> bool:
        """Whether there is a choice."""
        return self.least != self.most

    def clipped(self, setting: Setting) -> Setting:
        """The nearest setting within the limits that has no stage with more threads than batches."""
        window = min(max(setting.window, self.least.window), self.most.window)
        chosen = {}
        for stage in STAGES:
            count = min(max(setting.threads(stage), self.least.threads(stage)), self.most.threads(stage))
            chosen[stage] = max(self.least.threads(stage), min(count, window)) if stage in INSIDE else count
        return Setting(window, **chosen)

    def start(self) -> Setting:
        """Where a run begins: as many batches in flight as there are cores, 4 at most, and a thread for each stage."""
        return self.clipped(Setting(min(4, len(os.sched_getaffinity(0)))))
