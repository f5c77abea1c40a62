"""How fast the trainers of a run are: some are slowed on demand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from threading import Event
from typing import Any

from marius_oac.config_nodes import LoadConfig, NodesConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.load import LoadProfile, Slowdown, TimedStep
from marius_oac.task import Crew
from marius_oac.types import Step


class Pace:
    """Of one of the trainers.

    Args:
        config: the section.
        rank: this trainer's.
        trainers: how many there are.
    """

    def __init__(self, config: NodesConfig, rank: int, trainers: int):
        self._config, self._rank, self._trainers = config, rank, trainers
        self._step: TimedStep | None = None

    def check(self) -> None:
        """Raises ConfigError where a load is for a trainer that there is not."""
        for number, entry in enumerate(self._config.load):
            for rank in entry.trainers:
                if rank >= self._trainers:
                    raise ConfigError(
                        f"there is no trainer {rank}: there are {self._trainers}, from 0", f"nodes.load.{number}"
                    )

    def watch(self, step: Step, waited: Callable[[], float], stopped: Event, crew: Crew) -> Step:
        """The step that is to be used in the place of this one; for `waited` and `stopped` see `TimedStep`."""
        if not self._config.load:
            return step
        if crew.leads:
            sys.stderr.write("".join(f"note: emulated load: {told(entry)}\n" for entry in self._config.load))
        self._step = TimedStep(step, waited, stopped, profile_of(self._config, self._rank))
        return self._step

    def summary(self, crew: Crew) -> dict[str, Any]:
        """What was emulated, if anything was, over all trainers; collective."""
        if not self._config.load:
            return {}
        counts = crew.gather([self._step.slowed, self._step.added])
        slowed, added = (sum(each) for each in zip(*counts, strict=True))
        return {"load.emulated_batches": slowed, "load.emulated_seconds": added}


def profile_of(config: NodesConfig, rank: int) -> LoadProfile:
    """The load of one trainer."""
    own = [entry for entry in config.load if rank in entry.trainers]
    return LoadProfile(tuple(Slowdown(each.factor, each.begin, _end(each.end), _end(each.period)) for each in own))


def told(entry: LoadConfig) -> str:
    """One entry for a user."""
    names = ", ".join(map(str, entry.trainers))
    who = f"trainer {names} takes" if len(entry.trainers) == 1 else f"trainers {names} take"
    until = "on" if entry.end is None else f"to {entry.end:g} s"
    again = "" if entry.period is None else f", again every {entry.period:g} s"
    return f"{who} {entry.factor:g} times as long, from {entry.begin:g} s {until}{again}"


def _end(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
