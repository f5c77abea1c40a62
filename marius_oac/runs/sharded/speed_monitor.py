"""Measures how fast the trainers of a run are, to choose the mode; can also slow trainers down.

In mode auto the pipeline is drained every few global batches. Trainers then exchange the times of their batches, and
each has a `Policy` that takes the same decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np

from marius_oac.config.modes import LoadConfig, NodesConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.gba.load import TimedStep
from marius_oac.nodes.gba.policy import Measured, Policy
from marius_oac.runs.task import Peers
from marius_oac.runtime.console import logger
from marius_oac.types import Step, present

_HURRY = 4  # an urgent next decision comes after 1 / _HURRY of the usual interval
_TOLD = 256  # the most times that a trainer sends; of more, evenly spaced ones


class SpeedMonitor:
    """The speed of one of the trainers, and the mode that follows from that of all.

    Args:
        config: the section.
        rank: this trainer's.
        trainers: how many there are.
        batch_size: examples of a global batch.
        clock: seconds.
    """

    def __init__(
        self,
        config: NodesConfig,
        rank: int,
        trainers: int,
        batch_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._config, self._rank, self._trainers, self._batch_size = config, rank, trainers, batch_size
        self._clock = clock
        self._step: TimedStep | None = None
        self._policy = Policy(config.auto.margin, config.auto.patience) if config.mode == "auto" else None
        self._first, self._began, self._rests = 0, 0.0, 0
        self._batches, self._seconds = 0, 0.0  # since the last decision

    @property
    def mode(self) -> str | None:
        """The mode of the next batches; None: it is configured."""
        return None if self._policy is None else self._policy.mode

    def check(self) -> None:
        """Raises ConfigError if a load is configured for a trainer that does not exist."""
        for number, entry in enumerate(self._config.load):
            for rank in entry.trainers:
                if rank >= self._trainers:
                    raise ConfigError(
                        f"there is no trainer {rank}: there are {self._trainers}, from 0", f"nodes.load.{number}"
                    )

    def watch(self, step: Step, waited: Callable[[], float], stopped: Event, peers: Peers) -> Step:
        """Returns the step to use instead of `step`; for `waited` and `stopped` see `TimedStep`."""
        if not self._config.load and not self._policy:
            return step
        if peers.leads:
            for entry in self._config.load:
                logger.warning(f"emulated load: {told(entry)}")
        self._step = TimedStep(step, waited, stopped, loads_of(self._config, self._rank))
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

    def summary(self, peers: Peers) -> dict[str, Any]:
        """The emulated load over all trainers, if there was any. Collective."""
        if not self._config.load:
            return {}
        step = present(self._step)
        counts = peers.gather([step.slowed, step.added])
        slowed, added = (sum(each) for each in zip(*counts, strict=True))
        return {"load.emulated_batches": slowed, "load.emulated_seconds": added}


def loads_of(config: NodesConfig, rank: int) -> list[LoadConfig]:
    """The loads of one trainer."""
    return [entry for entry in config.load if rank in entry.trainers]


def told(entry: LoadConfig) -> str:
    """An entry of the configuration in words."""
    names = ", ".join(map(str, entry.trainers))
    who = f"trainer {names} takes" if len(entry.trainers) == 1 else f"trainers {names} take"
    until = "on" if entry.end is None else f"to {entry.end:g} s"
    again = "" if entry.period is None else f", again every {entry.period:g} s"
    least = f" (of {entry.seconds:g} s at least)" if entry.seconds else ""
    return f"{who} {entry.factor:g} times as long{least}, from {entry.begin:g} s {until}{again}"
