"""A model of the pipeline: stages that wait and compute on so many cores, in simulated time, without threads.

Every batch passes plan, read, upload, compute, download and write. A thread that computes has its share of the cores;
one that waits has none. Cores are shared evenly among those that want them; none has more than it can use (`width`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from marius_oac.pipeline.controller import Controller, Observation
from marius_oac.pipeline.setting import STAGES, Setting

ORDER = ("plan", "read", "upload", "compute", "download", "write")
Waiting = tuple[str, object, float]


@dataclass(frozen=True)
class Cost:
    """Seconds of a batch: waiting, then computing with up to `width` cores; `alone`: one batch at a time waits."""

    wait: float = 0.0
    cpu: float = 0.0
    width: int = 1
    alone: bool = False


@dataclass
class Machine:
    """`cold`: how many times longer every stage computes for each batch in flight beyond the first."""

    costs: dict[str, Cost]
    cores: int = 2
    cold: float = 0.0
    noise: float = 0.0
    handover: float = 1e-5
    seed: int = 0


@dataclass
class Simulation:
    """Runs batches under settings that may change at each batch's end."""

    machine: Machine
    setting: Setting
    now: float = 0.0
    cpu_seconds: float = 0.0
    busy: Counter = field(default_factory=Counter)
    written: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.machine.seed)
        self._queues: dict[str, list[int]] = {stage: [] for stage in ORDER}
        self._planned = self._entered = self._computed = 0
        self._finished: set[int] = set()
        self._locked: set[str] = set()
        self._threads = [self._thread(stage, k) for stage in ORDER for k in range(1 if stage == "compute" else 8)]
        self._blocked: list[tuple[Generator, Callable[[], bool]]] = []
        self._sleeping: list[tuple[float, Generator]] = []
        self._computing: list[list] = []  # [seconds left, width, thread]
        for thread in self._threads:
            self._step(thread)

    def _active(self, stage: str, number: int) -> bool:
        return stage == "compute" or number < self.setting.threads(stage)

    def _may_take(self, stage: str, number: int) -> bool:
        if not self._active(stage, number):
            return False
        if stage == "plan":
            return self._planned < self._entered + self.setting.window + self.setting.plan
        queue = self._queues[stage]
        if stage == "compute":
            return self._computed in queue
        if stage == "read":
            return self._entered in queue and self._entered < self.written + self.setting.window
        return bool(queue)

    def _take(self, stage: str) -> int:
        if stage == "plan":
            self._planned += 1
            return self._planned - 1
        batch = min(self._queues[stage])
        self._queues[stage].remove(batch)
        self._entered += stage == "read"
        return batch

    def _thread(self, stage: str, number: int) -> Generator:
        cost, noise = self.machine.costs.get(stage, Cost()), self.machine.noise
        following = ORDER[ORDER.index(stage) + 1] if stage != "write" else None
        while True:
            yield ("until", lambda: self._may_take(stage, number), 0.0)
            batch, began = self._take(stage), self.now
            slow = max(0.1, self._random.gauss(1, noise))
            if cost.wait:
                if cost.alone:
                    yield ("until", lambda: stage not in self._locked, 0.0)
                    self._locked.add(stage)
                yield ("sleep", None, cost.wait * slow)
                self._locked.discard(stage)
            cold = 1 + self.machine.cold * (self.setting.window - 1)
            yield ("cpu", cost.width, (cost.cpu * cold + self.machine.handover) * slow)
            self.busy[stage] += self.now - began
            self._computed += stage == "compute"
            if following:
                self._queues[following].append(batch)
            else:
                self._finished.add(batch)
                while self.written in self._finished:
                    self._finished.discard(self.written)
                    self.written += 1

    def _step(self, thread: Generator) -> None:
        kind, what, seconds = next(thread)
        if kind == "until":
            self._blocked.append((thread, what))
        elif kind == "sleep":
            self._sleeping.append((self.now + seconds, thread))
        else:
            self._computing.append([seconds, what, thread])

    def _wake(self) -> bool:
        for place, (thread, ready) in enumerate(self._blocked):
            if ready():
                del self._blocked[place]
                self._step(thread)
                return True
        return False

    def _rates(self) -> list[float]:
        """The cores of each that computes: as even shares as their widths allow."""
        left, rates = float(self.machine.cores), [0.0] * len(self._computing)
        order = sorted(range(len(rates)), key=lambda k: self._computing[k][1])
        for done, k in enumerate(order):
            rates[k] = min(self._computing[k][1], left / (len(rates) - done))
            left -= rates[k]
        return rates

    def run(self, batches: int) -> None:
        """Goes on until so many more batches are written."""
        last = self.written + batches
        while self.written < last:
            if self._wake():
                continue
            rates = self._rates()
            ends = [left / rate for (left, *_), rate in zip(self._computing, rates, strict=True)]
            times = ends + [at - self.now for at, _ in self._sleeping]
            step = min(times)
            self.now += step
            self.cpu_seconds += step * sum(rates)
            for each, rate in zip(self._computing, rates, strict=True):
                each[0] -= step * rate
            due = [each[2] for each, end in zip(self._computing, ends, strict=True) if end <= step * (1 + 1e-12)]
            due += [thread for at, thread in self._sleeping if at <= self.now * (1 + 1e-12)]
            self._computing = [each for each in self._computing if each[2] not in due]
            self._sleeping = [each for each in self._sleeping if each[1] not in due]
            for thread in due:
                self._step(thread)

    def observed(self, batches: int) -> Observation:
        """Runs so many batches; returns what they took."""
        before, cpu, now = self.busy.copy(), self.cpu_seconds, self.now
        self.run(batches)
        busy = {stage: self.busy[stage] - before[stage] for stage in ORDER}
        return Observation(batches, self.now - now, busy, self.cpu_seconds - cpu)


def period(machine: Machine, setting: Setting, batches: int = 200) -> float:
    """Seconds a batch with one setting."""
    simulation = Simulation(machine, setting)
    simulation.run(30)
    began = simulation.now
    simulation.run(batches)
    return (simulation.now - began) / batches


def controlled(machine: Machine, controller: Controller, batches: int) -> tuple[Simulation, list[Setting]]:
    """Runs so many batches, or some more, under a controller; returns all settings in turn, too."""
    simulation, settings = Simulation(machine, controller.setting), [controller.setting]
    while simulation.written < batches:
        simulation.run(controller.skip)
        settings.append(controller.observe(simulation.observed(controller.batches)))
        simulation.setting = settings[-1]
    return simulation, settings


assert set(STAGES) < set(ORDER)
