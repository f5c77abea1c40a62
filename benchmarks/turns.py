"""Contestants of a benchmark, each in a process of its own on the same cores, taking turns.

A process of its own, because thread pools go on spinning for milliseconds after their last product: contestants in one
process would wait for each other's. Ratios are medians of the ratios within a round, so a busy machine slows all alike.
"""

import multiprocessing
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from marius_oac.types import BatchData

_SETTLE = 0.05  # seconds in which the last contestant's threads stop spinning


class Contestant(ABC):
    """What runs in the process. Made there by the factory that `take_turns` is given."""

    @abstractmethod
    def run(self, batches: int) -> None: ...

    def report(self) -> Any:
        """Whatever the parent should know at the end."""
        return None

    def close(self) -> None:  # noqa: B027  (not every contestant holds something)
        """Gives back what it holds."""


class StepContestant(Contestant):
    """A step's compute alone, on batches that are drawn before, again and again.

    Args:
        step: has `compute(values, data, batch_index)` and `close`.
        batches: values of the rows and the record of each.
    """

    def __init__(self, step: Any, batches: Sequence[tuple[Any, BatchData]]):
        self._step, self._batches, self._next = step, batches, 0

    def run(self, batches: int) -> None:
        for _ in range(batches):
            values, data = self._batches[self._next % len(self._batches)]
            self._step.compute([values], data, self._next)
            self._next += 1

    def close(self) -> None:
        self._step.close()


@dataclass
class Times:
    """Per batch: seconds, and processor seconds of all threads; one entry a round."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    report: Any = None

    @property
    def middle(self) -> float:
        return statistics.median(self.seconds)

    def times_faster(self, other: "Times") -> float:
        return statistics.median(theirs / mine for mine, theirs in zip(self.seconds, other.seconds, strict=True))


def cores_to_use(count: int) -> set[int]:
    return set(sorted(os.sched_getaffinity(0))[:count])


def _serve(pipe, factory: Callable[[], Contestant], cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)
    import torch

    torch.set_num_threads(len(cores))
    torch.manual_seed(0)
    contestant = factory()
    while (batches := pipe.recv()) is not None:
        contestant.run(1)
        cpu, wall = time.process_time(), time.perf_counter()
        contestant.run(batches)
        pipe.send(((time.perf_counter() - wall) / batches, (time.process_time() - cpu) / batches))
    pipe.send(contestant.report())
    contestant.close()


@contextmanager
def _process(factory, cores):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, factory, cores))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(30)
        process.kill()


def take_turns(
    factories: Mapping[str, Callable[[], Contestant]], cores: int, batches: int, rounds: int
) -> dict[str, Times]:
    """Runs `rounds` rounds of `batches` batches each, and one before that does not count. Factories are pickled."""
    with ExitStack() as stack:
        bound = cores_to_use(cores)
        pipes = {name: stack.enter_context(_process(factory, bound)) for name, factory in factories.items()}
        times = {name: Times() for name in factories}
        for number in range(rounds + 1):
            for name, pipe in pipes.items():
                time.sleep(_SETTLE)
                pipe.send(batches)
                seconds, cpu_seconds = pipe.recv()
                if number:
                    times[name].seconds.append(seconds)
                    times[name].cpu_seconds.append(cpu_seconds)
        for name, pipe in pipes.items():
            pipe.send(None)
            times[name].report = pipe.recv()
    return times
