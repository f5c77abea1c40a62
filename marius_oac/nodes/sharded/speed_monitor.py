"""Measures how fast the trainers of a run are, to choose the mode.

In mode auto the pipeline is drained every few global batches. Trainers then exchange the times of their batches, and
each has a `Policy` that takes the same decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from marius_oac.config.modes import NodesConfig
from marius_oac.nodes.gba.policy import Measured, Policy
from marius_oac.nodes.gba.timed_step import TimedStep
from marius_oac.runs.peers import Peers
from marius_oac.types import Step, present

_HURRY = 4  # an urgent next decision comes after 1 / _HURRY of the usual interval
_TOLD = 256  # the most times that a trainer sends; of more, evenly spaced ones


class SpeedMonitor:
    """The speed of one of the trainers, and the mode that follows from that of all.

    Args:
        config: the section.
        trainers: how many there are.
        batch_size: examples of a global batch.
        clock: seconds.
    """

    def __init__(
        self,
        config: NodesConfig,
        trainers: int,
        batch_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._config, self._trainers, self._batch_size = config, trainers, batch_size
        self._clock = clock
        self._step: TimedStep | None = None
        self._policy = Policy(config.auto.margin, config.auto.patience) if config.mode == "auto" else None
        self._first, self._began, self._rests = 0, 0.0, 0
        self._batches, self._seconds = 0, 0.0  # since the last decision

    @property
    def mode(self) -> str | None:
        """The mode of the next batches; None: it is configured."""
        return None if self._policy is None else self._policy.mode

    def watch(self, step: Step, waited: Callable[[], float]) -> Step:
        """Returns the step to use instead of `step`; for `waited` see `TimedStep`."""
        if not self._policy:
            return step
        self._step = TimedStep(step, waited)
        return self._step

    def rests(self, batch: int) -> int | None:
        """The first batch after this one before which a decision is due; None: none is."""
        if self._policy is None:
            return None
        if self._rests <= batch:
            self._rests = batch + self._config.auto.every
        return self._rests

    def begin(self, first: int) -> None:
        """Called before batches from `first` on are trained."""
        self._first, self._began = first, self._clock()

    def end(self, reached: int, peers: Peers) -> list[dict[str, Any]]:
        """Called when all batches up to `reached` are trained. Returns the decision, if one is due. Collective."""
        self._batches += reached - self._first
        self._seconds += self._clock() - self._began
        if self._policy is None or reached < self._rests:
            return []
        told = peers.gather([self._seconds, self._times()])
        rate = self._batches * self._batch_size / max(seconds for seconds, _ in told)
        before, decision = self._policy.mode, self._policy.decide(Measured(rate, [np.array(each) for _, each in told]))
        every, parts = self._config.auto.every, self._config.mode_options.parts or self._trainers
        length = self._policy.interval(every, self._batch_size, -(-self._batch_size // parts))
        self._rests = reached + (max(1, every // _HURRY) if decision.hurry else length)
        self._batches, self._seconds = 0, 0.0
        return [{"was": before, "examples_per_second": rate} | decision.metrics()]

    def _times(self) -> list[float]:
        """Seconds per example of this trainer's batches since the last decision, in their order."""
        found = [seconds / (share * self._batch_size) for share, seconds in present(self._step).take()]
        return [found[number * len(found) // _TOLD] for number in range(_TOLD)] if len(found) > _TOLD else found
