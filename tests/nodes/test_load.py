"""Slow trainers on demand: when, by how much, and that nothing else changes."""

import threading

import numpy as np
import pytest

from marius_oac.config.modes import LoadConfig, NodesConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.gba.load import TimedStep, slowed
from marius_oac.runs.sharded.speed_monitor import SpeedMonitor, loads_of, told
from marius_oac.runs.task import Peers
from marius_oac.types import BatchData


def slow(factor=1.0, **more):
    return LoadConfig(trainers=(0,), factor=factor, **more)


class World:
    """A step, a clock and an event whose waits take the clock's time and no other."""

    def __init__(self):
        self.now, self.waited, self.waits, self.ends = 100.0, 5.0, [], False
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
        return self.ends

    def step(self, *loads):
        return TimedStep(self, lambda: self.waited, self, loads, lambda: self.now)


def compute(step, share=0.5, timestamp=7):
    rows = [np.zeros(3, np.float32)]
    loss = step.compute(rows, BatchData(share=share), timestamp)
    return loss, rows[0].tolist()


def test_a_batch_is_slowed_that_begins_while_the_load_is_on():
    world = World()
    step = world.step(slow(3.0, begin=2.0, end=4.0), slow(2.0, begin=3.0))
    began = []
    for _ in range(6):
        began.append(world.now - 100)
        assert compute(step) == (0.25, [7.0] * 3)
    # At 2 s three times, then from 5 s on twice as long: the first load is over.
    assert began == [0, 1, 2, 5, 7, 9]
    assert world.waits == [2, 1, 1, 1] and (step.slowed, step.added) == (4, 5)
    assert step.take() == [(0.5, each) for each in (1, 1, 3, 2, 2, 2)] and step.take() == []


def test_loads_that_meet_are_multiplied_and_come_again():
    often = slow(4.0, begin=10.0, end=20.0, period=100.0)
    times = (0, 9.9, 10, 19.9, 20, 109.9, 110, 120)
    assert [slowed((often,), 2.0, now) for now in times] == [2, 2, 8, 8, 2, 2, 8, 2]
    assert slowed((often, slow(1.5)), 1.0, 112.0) == 6
    assert slowed((), 3.0, 0.0) == 3


def test_a_slower_machine_is_emulated_by_what_a_batch_takes_at_least():
    machine = (slow(1.0, seconds=0.5), slow(4.0, begin=10.0))
    assert [slowed(machine, 0.1, now) for now in (0, 10)] == [0.5, 2]
    assert [slowed(machine, 0.8, now) for now in (0, 10)] == [0.8, 3.2]
    world = World()
    step = world.step(slow(2.0, seconds=5.0))
    compute(step)
    assert world.waits == [9] and step.take() == [(0.5, 10)]


def test_what_a_trainer_waits_for_others_is_not_made_longer():
    world = World()
    world.for_others = 50.0
    step = world.step(slow(3.0))
    compute(step)
    assert world.waits == [2] and step.take() == [(0.5, 3)]


def test_a_part_that_counts_for_nothing_is_slowed_and_not_measured():
    world = World()
    step = world.step(slow(3.0))
    compute(step, share=0.0)
    assert world.waits == [2] and step.take() == []


def test_without_a_load_nothing_waits():
    world = World()
    step = world.step()
    compute(step)
    assert (world.waits, step.slowed, step.added) == ([], 0, 0.0)


def test_everything_else_is_the_steps_own():
    step = World().step()
    assert step.predict("rows") == "rows"
    with pytest.raises(AttributeError):
        _ = step.served


def test_who_is_stopped_waits_no_longer():
    world, stopped = World(), threading.Event()
    step = TimedStep(world, lambda: 0.0, stopped, [slow(1e6)], lambda: world.now)
    found = []

    def run():
        found.append(compute(step))

    thread = threading.Thread(target=run)
    thread.start()
    stopped.set()
    thread.join(30)
    assert found == [(0.25, [7.0] * 3)]


def config(*load):
    return NodesConfig(load=load)


def test_each_trainer_has_the_load_that_names_it():
    both = config({"trainers": [0, 2], "factor": 2, "end": 5}, {"trainers": [2], "factor": 3, "period": 9})
    assert loads_of(both, 1) == []
    assert loads_of(both, 0) == [both.load[0]]
    assert loads_of(both, 2) == list(both.load)


def test_a_trainer_that_there_is_not_is_refused():
    load = config({"trainers": [0, 2], "factor": 2})
    SpeedMonitor(load, 0, 3, 64).check()
    with pytest.raises(ConfigError, match=r"nodes\.load\.0: there is no trainer 2: there are 2, from 0"):
        SpeedMonitor(load, 0, 2, 64).check()


def test_an_emulated_load_is_told(capsys):
    world, speed_monitor = (
        World(),
        SpeedMonitor(config({"trainers": [0], "factor": 2, "begin": 1, "end": 3, "period": 8}), 0, 1, 64),
    )
    step = speed_monitor.watch(world, lambda: 0.0, world, Peers())
    said = "note: emulated load: trainer 0 takes 2 times as long, from 1 s to 3 s, again every 8 s\n"
    assert capsys.readouterr().err == said
    assert isinstance(step, TimedStep)
    assert speed_monitor.summary(Peers()) == {"load.emulated_batches": 0, "load.emulated_seconds": 0.0}
    told_of = told(LoadConfig(trainers=(0,), seconds=0.5))
    assert told_of == "trainer 0 takes 1 times as long (of 0.5 s at least), from 0 s on"
    assert told(LoadConfig(trainers=(0, 1), factor=1.5)) == "trainers 0, 1 take 1.5 times as long, from 0 s on"


def test_without_a_load_the_step_is_left_alone(capsys):
    world, speed_monitor = World(), SpeedMonitor(config(), 0, 1, 64)
    assert speed_monitor.watch(world, lambda: 0.0, world, Peers()) is world
    assert speed_monitor.summary(Peers()) == {} and capsys.readouterr().err == ""
