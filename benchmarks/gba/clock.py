"""Workers on a virtual clock: who is how slow and when, and which gradient arrives when.

Compute and network are emulated: a batch takes a worker so many virtual seconds, and all else takes none. What is not
emulated: the modes, the dealer and the aggregators are the package's, and gradients are those that the model gives for
the parameters of the moment at which the worker asked.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marius_oac.nodes.gba.dispatcher import WAIT, Dispatcher

RATE = 10_000.0  # examples that a worker at full speed computes in a virtual second


@dataclass(frozen=True)
class Slow:
    """The last `share` of the workers (rounded down) take `factor` times as long for batches begun in [begin, end)."""

    share: float
    factor: float
    begin: float = 0.0
    end: float = math.inf


@dataclass(frozen=True)
class LoadProfile:
    """Which worker is how much slower, and when.

    Attributes:
        slow: slowdowns; those that meet are multiplied.
        jitter: standard deviation of the logarithm of each step's time.
        period: virtual seconds after which the profile begins again, such as those of a day.
    """

    slow: tuple[Slow, ...] = ()
    jitter: float = 0.1
    period: float = math.inf

    def factor(self, worker: int, workers: int, now: float) -> float:
        """How many times as long as at full speed a batch takes that this worker of so many begins now."""
        moment = now % self.period
        found = [
            each.factor
            for each in self.slow
            if worker >= workers - math.floor(each.share * workers) and each.begin <= moment < each.end
        ]
        return math.prod(found)


QUIET = LoadProfile()
QUARTER_SLOW = LoadProfile((Slow(0.25, 4.0),))
QUARTER_SLOWER = LoadProfile((Slow(0.25, 8.0),))


def phases(period: float) -> LoadProfile:
    """A day in four phases: all at full speed; a quarter 4 x slower; half 2 x slower; all at full speed again."""
    quarter = period / 4
    return LoadProfile((Slow(0.25, 4.0, quarter, 2 * quarter), Slow(0.5, 2.0, 2 * quarter, 3 * quarter)), period=period)


class Server(Protocol):
    """What the workers talk to."""

    def gradient(self, batch: int) -> object:
        """The gradient of a batch at the parameters of this moment."""

    def push(self, batch: int, token: int, gradient: object) -> int | None:
        """Takes a gradient. Returns the global step that comes next if one is finished by it."""


@dataclass(frozen=True)
class Crew:
    """The workers: how many, examples of a batch, their load, and a seed of the jitter."""

    workers: int
    local_batch: int
    profile: LoadProfile
    seed: int = 0

    def seconds(self, worker: int, batch: int, now: float) -> float:
        """Virtual time that a worker takes for a batch; a function of the arguments and the seed alone."""
        noise = np.random.default_rng((self.seed, worker, batch)).standard_normal() * self.profile.jitter
        return self.local_batch / RATE * self.profile.factor(worker, self.workers, now) * math.exp(noise)

    def run(self, dispatcher: Dispatcher, server: Server, now: float = 0.0) -> float:
        """Works from `now` until no data are left. Returns the virtual time at which the last gradient arrives."""
        order = itertools.count()
        arrivals: list[tuple] = []

        def ask(worker: int) -> None:
            dispatch = dispatcher.ask(worker)
            if dispatch is not WAIT and dispatch is not None:
                due = now + self.seconds(worker, dispatch.batch, now)
                heapq.heappush(arrivals, (due, next(order), worker, dispatch, server.gradient(dispatch.batch)))

        for worker in range(self.workers):
            ask(worker)
        while arrivals:
            now, _, worker, dispatch, gradient = heapq.heappop(arrivals)
            step = server.push(dispatch.batch, dispatch.token, gradient)
            woken = dispatcher.done(worker, dispatch.batch)
            if step is not None:
                woken += dispatcher.stepped(step)
            for each in (worker, *woken):
                ask(each)
        return now
