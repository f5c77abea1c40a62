"""The tuner with clocks of the test's own: which batches a block has, and what its observation says."""

import pytest

from marius_oac.pipeline import tuner as module
from marius_oac.pipeline.controller import Observation
from marius_oac.pipeline.setting import Limits, Setting
from marius_oac.pipeline.tuner import Tuner

LIMITS = Limits(Setting(1), Setting(9))


class Clock:
    """Each batch takes `wall` seconds, `cpu` of the processors, and 0.25 of them in `read`."""

    def __init__(self):
        self.wall, self.cpu, self.batches = 100.0, 7.0, 0

    def perf_counter(self):
        return self.wall

    def process_time(self):
        return self.cpu

    def total(self):
        return {"read": 5.0 + 0.25 * self.batches} | ({"write": 1.0} if self.batches > 12 else {})

    def tick(self):
        self.wall, self.cpu, self.batches = self.wall + 0.5, self.cpu + 0.75, self.batches + 1


class Recorder:
    """In the controller's place: blocks of 4 batches. After the first, 6 are in flight; 3 batches are left out."""

    def __init__(self, limits, start, cores):
        self.setting = self.kept = start
        self.batches, self.skip, self.seen = 4, 0, []

    def observe(self, seen):
        self.seen.append(seen)
        self.skip = 3 if len(self.seen) == 1 else 0
        self.setting = Setting(6)
        return self.setting


@pytest.fixture
def tuned(monkeypatch):
    def make(start):
        clock = Clock()
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "Controller", Recorder)
        tuner = Tuner(LIMITS, start, 2, clock)
        return tuner, clock, tuner._controller.seen

    return make


def batches_until_observed(tuner, clock, seen):
    count, before = 0, len(seen)
    while len(seen) == before:
        clock.tick()
        chosen = tuner.written()
        count += 1
    return count, chosen


@pytest.mark.parametrize("window, warm_up", [(1, 4), (2, 4), (3, 5), (8, 10)])
def test_the_first_batches_of_a_process_and_of_a_run_are_not_measured(tuned, window, warm_up):
    tuner, clock, seen = tuned(Setting(window))
    tuner.begin()
    assert batches_until_observed(tuner, clock, seen) == (warm_up + 4, Setting(6))


def test_an_observation_has_its_own_batches_alone(tuned):
    tuner, clock, seen = tuned(Setting(1))
    tuner.begin()
    batches_until_observed(tuner, clock, seen)
    assert seen == [Observation(4, 2.0, {"read": 1.0}, 3.0)]
    assert batches_until_observed(tuner, clock, seen) == (3 + 4, None), "three left out, the setting as it was"
    assert seen[1] == Observation(4, 2.0, {"read": 1.0, "write": 1.0}, 3.0), "write began in it"
    assert batches_until_observed(tuner, clock, seen) == (4, None), "the next block follows at once"


def test_a_block_that_the_end_of_a_run_cuts_short_is_dropped(tuned):
    tuner, clock, seen = tuned(Setting(1))
    tuner.begin()
    for _ in range(6):
        clock.tick()
        assert tuner.written() is None
    tuner.begin()
    assert batches_until_observed(tuner, clock, seen)[0] == 3 + 4
