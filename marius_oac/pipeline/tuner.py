"""Measures a pipeline for its controller: the only place where the controller's numbers come from clocks.

A block of batches is measured from the end of the batch before it; batches while the pipeline fills, or a setting takes
effect, are not. A block that the run's end cuts short is dropped.
"""

from __future__ import annotations

import time

from marius_oac.pipeline.controller import Controller, Observation
from marius_oac.pipeline.setting import Limits, Setting
from marius_oac.runtime.telemetry import Telemetry

_WARM_UP = 4  # of a process's first batches, in which kernels are compiled


class Tuner:
    """One for all runs of a pipeline. Its methods are called by one thread at a time.

    Args:
        start: the first setting.
        cores: that this process may use.
    """

    def __init__(self, limits: Limits, start: Setting, cores: int, telemetry: Telemetry):
        self._controller, self._telemetry = Controller(limits, start, cores), telemetry
        self._skip, self._left = _WARM_UP, 0
        self._before: tuple[float, float, dict[str, float]] | None = None

    @property
    def setting(self) -> Setting:
        """The setting in use."""
        return self._controller.setting

    @property
    def kept(self) -> Setting:
        """The best setting so far."""
        return self._controller.kept

    def begin(self) -> None:
        """Called before the first batch of a run."""
        self._skip, self._before = max(self._skip, self.setting.window + 2), None

    def written(self) -> Setting | None:
        """Called at the end of each batch; returns another setting if there shall be one from now on."""
        if self._skip:
            self._skip -= 1
            if self._skip:
                return None
        elif self._before is not None:
            self._left -= 1
            if self._left:
                return None
        return self._turn()

    def _turn(self) -> Setting | None:
        """Ends a block, if there is one, and begins the next."""
        now, chosen = (time.perf_counter(), time.process_time(), self._telemetry.total()), None
        if self._before is not None:
            seconds, cpu, busy = now[0] - self._before[0], now[1] - self._before[1], self._before[2]
            spent = {stage: total - busy.get(stage, 0.0) for stage, total in now[2].items()}
            before, batches = self.setting, self._controller.batches
            self._controller.observe(Observation(batches, seconds, spent, cpu))
            self._skip = self._controller.skip
            chosen = self.setting if self.setting != before else None
        self._before, self._left = None if self._skip else now, self._controller.batches
        return chosen
