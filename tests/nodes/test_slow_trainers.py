"""A trainer's batches are timed; those of slow trainers, of the benchmarks, take as long as their loads say."""

import numpy as np
import pytest

from benchmarks.nodes.slow_trainers import Load, SlowStep, slow_trainer, slowed
from marius_oac.config.modes import NodesConfig
from marius_oac.nodes.gba.timed_step import TimedStep
from marius_oac.nodes.sharded.speed_monitor import SpeedMonitor
from marius_oac.types import BatchData


class World:
    """A step, and a clock whose waits take its time and no other."""

    def __init__(self):
        self.now, self.waited, self.waits = 100.0, 5.0, []
        self.seconds, self.for_others = 1.0, 0.0

    def compute(self, rows, data, timestamp):
        self.now += self.seconds + self.for_others
        self.waited += self.for_others
        rows[0][:] += timestamp
        return 0.25

    def predict(self, rows):
        return rows

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    def step(self, *loads):
        slow = SlowStep(self, lambda: self.waited, loads, self.wait, lambda: self.now)
        return TimedStep(slow, lambda: self.waited, lambda: self.now)


def compute(step, share=0.5, timestamp=7):
    rows = [np.zeros(3, np.float32)]
    loss = step.compute(rows, BatchData(share=share), timestamp)
    return loss, rows[0].tolist()


def test_a_batch_is_slowed_that_begins_while_the_load_is_on():
    world = World()
    step = world.step(Load(factor=3.0, begin=2.0, end=4.0), Load(factor=2.0, begin=3.0))
    began = []
    for _ in range(6):
        began.append(world.now - 100)
        assert compute(step) == (0.25, [7.0] * 3)
    # At 2 s three times, then from 5 s on twice as long: the first load is over.
    assert began == [0, 1, 2, 5, 7, 9]
    assert world.waits == [2, 1, 1, 1]
    assert step.take() == [(0.5, each) for each in (1, 1, 3, 2, 2, 2)] and step.take() == []


def test_loads_that_meet_are_multiplied_and_come_again():
    often = Load(factor=4.0, begin=10.0, end=20.0, period=100.0)
    times = (0, 9.9, 10, 19.9, 20, 109.9, 110, 120)
    assert [slowed((often,), 2.0, now) for now in times] == [2, 2, 8, 8, 2, 2, 8, 2]
    assert slowed((often, Load(factor=1.5)), 1.0, 112.0) == 6
    assert slowed((), 3.0, 0.0) == 3


def test_a_slower_machine_is_emulated_by_what_a_batch_takes_at_least():
    machine = (Load(seconds=0.5), Load(factor=4.0, begin=10.0))
    assert [slowed(machine, 0.1, now) for now in (0, 10)] == [0.5, 2]
    assert [slowed(machine, 0.8, now) for now in (0, 10)] == [0.8, 3.2]
    world = World()
    step = world.step(Load(factor=2.0, seconds=5.0))
    compute(step)
    assert world.waits == [9] and step.take() == [(0.5, 10)]


def test_what_a_trainer_waits_for_others_is_not_made_longer():
    world = World()
    world.for_others = 50.0
    step = world.step(Load(factor=3.0))
    compute(step)
    assert world.waits == [2] and step.take() == [(0.5, 3)]


def test_a_part_that_counts_for_nothing_is_slowed_and_not_measured():
    world = World()
    step = world.step(Load(factor=3.0))
    compute(step, share=0.0)
    assert world.waits == [2] and step.take() == []


def test_without_a_load_nothing_waits():
    world = World()
    step = world.step()
    compute(step)
    assert world.waits == []


def test_everything_else_is_the_steps_own():
    step = World().step()
    assert step.predict("rows") == "rows"
    with pytest.raises(AttributeError):
        _ = step.served


def test_within_the_block_the_steps_of_this_process_are_slow():
    world, monitor = World(), SpeedMonitor(NodesConfig(), 1, 64)
    assert monitor.watch(world, lambda: 0.0) is world
    with slow_trainer([Load(factor=2.0)]):
        assert isinstance(monitor.watch(world, lambda: 0.0), SlowStep)
    assert monitor.watch(world, lambda: 0.0) is world
