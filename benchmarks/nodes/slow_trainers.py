"""Runs over nodes of this machine in which some trainers are slower.

    python -m benchmarks.nodes.slow_trainers '[{"trainers": [1], "factor": 4}]' train config.yaml --local-nodes 2

The first argument lists loads (`Load`); what follows are arguments of `marius-oac`. A slow trainer only waits, after it
has computed a batch, so in lockstep no bit changes. Time that it waits for others is not stretched: two slow trainers
would stretch each other's waits, longer with each batch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from marius_oac.cli import commands
from marius_oac.nodes.launch import launch
from marius_oac.nodes.sharded.speed_monitor import SpeedMonitor
from marius_oac.runtime.command import end_at_once
from marius_oac.types import BatchData, Step


@dataclass(frozen=True)
class Load:
    """What makes trainers slower.

    Attributes:
        trainers: their numbers, from 0.
        factor: how many times as long a batch takes.
        seconds: that a batch takes at full speed, at least: it emulates machines that don't compete for cores.
        begin, end: when, in seconds since the process began its first batch.
        period: seconds after which it comes again.
    """

    trainers: Sequence[int] = ()
    factor: float = 1.0
    seconds: float = 0.0
    begin: float = 0.0
    end: float = math.inf
    period: float = math.inf


def slowed(loads: Sequence[Load], own: float, now: float) -> float:
    """Seconds of a batch that begins `now` seconds after training began and took `own` seconds. Where loads overlap,
    their factors are multiplied."""
    found = [each for each in loads if each.begin <= now % each.period < each.end]
    return max([own, *(each.seconds for each in found)]) * math.prod(each.factor for each in found)


class SlowStep:
    """Wraps a step on the CPU that takes as long as its loads say. Other attributes are the step's own.

    Args:
        waited: seconds that the calling thread has waited for other trainers so far.
        wait, clock: of seconds.
    """

    def __init__(
        self,
        step: Step,
        waited: Callable[[], float],
        loads: Sequence[Load],
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._step, self._waited, self._loads, self._wait, self._clock = step, waited, loads, wait, clock
        self._began: float | None = None

    def compute(self, rows: Sequence[Any], data: BatchData, timestamp: int) -> Any:
        """See `Step.compute`."""
        begin, waited = self._clock(), self._waited()
        self._began = begin if self._began is None else self._began
        loss = self._step.compute(rows, data, timestamp)
        own = self._clock() - begin - (self._waited() - waited)
        longer = slowed(self._loads, own, begin - self._began) - own
        if longer > 0:
            self._wait(longer)
        return loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


@contextmanager
def slow_trainer(loads: Sequence[Load]) -> Iterator[None]:
    """Within the block, the steps of this process are slow."""
    real = SpeedMonitor.watch

    def watch(monitor: SpeedMonitor, step: Step, waited: Callable[[], float]) -> Step:
        return real(monitor, SlowStep(step, waited, loads), waited)

    SpeedMonitor.watch = watch
    try:
        yield
    finally:
        SpeedMonitor.watch = real


def main() -> int:
    """Starts the trainers, or is one of them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    text, words, rank = options.loads, options.arguments, os.environ.get("RANK")
    loads = [load for load in (Load(**each) for each in json.loads(text)) if rank and int(rank) in load.trainers]
    launch.Request = partial(launch.Request, program=("-m", "benchmarks.nodes.slow_trainers", text))
    with ExitStack() as stack:
        if loads:
            stack.enter_context(slow_trainer(loads))
        return commands.main(words)


if __name__ == "__main__":
    sys.exit(end_at_once(main()))
