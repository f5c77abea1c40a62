"""Trainers on a virtual clock whose speed changes in phases of a day, in sync, in gba, or as a policy says.

A local batch is one example and takes a trainer at full speed one second, times its load, times lognormal jitter, and
what the mode costs. A stretch is EVERY global batches, or what the policy says; at its end all come to rest.
"""

import heapq

import numpy as np

from marius_oac.nodes.gba.policy import Measured

EVERY = 40


def day(workers):
    """How many times as long each takes: nobody slower; a quarter 4 x; half 2 x; nobody."""
    one = np.ones(workers)
    quarter, half = one.copy(), one.copy()
    quarter[-max(1, workers // 4) :] = 4
    half[-max(1, workers // 2) :] = 2
    return [one, quarter, half, one]


class Day:
    """One run over loads that hold for so many stretches' time each, at full speed; `costs`: of sync and gba, seconds
    a batch."""

    def __init__(self, loads, jitter, stretches, costs=(0.0, 0.0), seed=0):
        self.loads, self.jitter, self.seconds, self.costs = loads, jitter, stretches * EVERY, costs
        self.workers, self.draw, self.now = len(loads[0]), np.random.default_rng(seed), 0.0
        self.examples = np.zeros(len(loads))

    @property
    def phase(self):
        return self._phase(self.now)

    @property
    def over(self):
        return self.now >= self.seconds * len(self.loads)

    def _phase(self, now):
        return min(int(now / self.seconds), len(self.loads) - 1)

    def _done(self, now, count):
        if now < self.seconds * len(self.loads):
            self.examples[self._phase(now)] += count

    def _noise(self, *shape):
        return np.exp(self.jitter * self.draw.standard_normal(shape))

    def sync(self, batches):
        """One stretch."""
        times, begin = self._noise(batches, self.workers), self.now
        for row in times:
            row *= self.loads[self.phase]
            self.now += row.max() + self.costs[0]
            self._done(self.now, self.workers)
        return Measured(batches * self.workers / (self.now - begin), list(times.T))

    def gba(self, batches):
        count, begin = batches * self.workers, self.now
        times, free = [[] for _ in range(self.workers)], [(begin, worker) for worker in range(self.workers)]
        for noise in self._noise(count):
            start, worker = heapq.heappop(free)
            times[worker].append(noise * self.loads[self._phase(start)][worker])
            end = start + times[worker][-1] + self.costs[1]
            self._done(end, 1)
            self.now = max(self.now, end)
            heapq.heappush(free, (end, worker))
        return Measured(count / (self.now - begin), [np.array(each) for each in times])


def run_fixed(mode, *about, **more):
    """Examples in each phase, float64 [phases]."""
    run = Day(*about, **more)
    while not run.over:
        getattr(run, mode)(EVERY)
    return run.examples


def run_auto(policy, *about, **more):
    """The same, and the switches in each phase beside those of the trial, int64 [phases]."""
    run = Day(*about, **more)
    switches, mode, batches = np.zeros(len(run.loads), np.int64), "sync", EVERY
    while not run.over:
        decision = policy.decide(getattr(run, mode)(batches))
        switches[run.phase] += decision.switches and not decision.trial
        mode, batches = decision.mode, EVERY // 4 if decision.hurry else policy.interval(EVERY, run.workers, 1)
    return run.examples, switches
