"""Batches in flight and threads that change at every batch: the bits stay, and everything ends as it must."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.slow_link import SlowLink
from marius_oac.pipeline.setting import STAGES as SIZED
from marius_oac.pipeline.setting import Limits, Setting
from tests.pipeline.test_runner import copying, jitter
from tests.pipeline.toy import STAGES, ToyPlanner, run_toy
from tests.run_folders import slow

PLANNER = ToyPlanner(batches=40)
WIDEST = Setting(16, *[4] * 5)


class Forced:
    """In place of a tuner: another setting after every batch, of a list that comes again and again."""

    def __init__(self, several):
        self.several, self.number = several, 0
        self.setting = self.kept = several[0]

    def begin(self):
        pass

    def written(self):
        self.number += 1
        self.setting = self.several[self.number % len(self.several)]
        return self.setting


def forced(several, device=None):
    """For `run_toy`: gives the pipeline these settings, and the device, if any."""

    def make(pipeline):
        assert pipeline.limits == Limits(Setting(1), WIDEST)
        pipeline.tuner = Forced(several)
        return device(pipeline) if device else pipeline.device

    return make


@pytest.fixture(scope="module")
def synchronous():
    return run_toy(PLANNER, mode="sync")[:2]


threads = st.integers(1, 4)
numbers = st.builds(Setting, st.sampled_from([1, 1, 2, 3, 7, 16]), *[threads] * 5)


@settings(deadline=None, max_examples=25)
@given(st.lists(numbers, min_size=1, max_size=8), st.sampled_from([None, copying]), st.integers(0, 9))
def test_the_bits_are_those_of_sync(synchronous, several, device, seed):
    *tables, results, pipeline = run_toy(PLANNER, mode="oac", probe=jitter(seed), device=forced(several, device))
    assert tuple(tables) == synchronous
    widest = max(each.window for each in several)
    rows = sum(table.max_batch_rows for table in PLANNER.tables)
    assert max(result.cached_rows for result in results) <= rows * widest
    assert pipeline.device._resident.made <= 2 * widest


def test_one_batch_in_flight_is_never_cached_and_uses_one_buffer(synchronous):
    *tables, results, pipeline = run_toy(PLANNER, mode="oac", in_flight=1)
    assert tuple(tables) == synchronous
    assert pipeline.device._resident.made == 1 and not any(result.cached_rows for result in results)


PARKED = Setting(8)
AWAKE = Setting(8, *[4] * 5)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("several", [[PARKED], *map(slow, ([AWAKE, PARKED],))])
def test_an_error_of_any_stage_ends_the_threads_that_are_parked(stage, several):
    def probe(at, batch_index):
        if (at, batch_index) == (stage, 17):
            raise OSError(f"injected in {stage}")

    before = threading.active_count()
    with pytest.raises(OSError, match=f"injected in {stage}"):
        run_toy(PLANNER, mode="oac", probe=probe, device=forced(several))
    assert threading.active_count() == before


@pytest.mark.parametrize("stage", ["plan", "compute", "write"])
def test_a_stop_ends_the_threads_that_are_parked(stage):
    held = {}

    def remember(pipeline):
        held["pipeline"] = pipeline
        return forced([AWAKE, PARKED])(pipeline)

    def probe(at, batch_index):
        if (at, batch_index) == (stage, 9):
            held["pipeline"].request_stop()

    before = threading.active_count()
    *_, results, _ = run_toy(PLANNER, mode="oac", probe=probe, device=remember)
    assert threading.active_count() == before and 9 <= len(results) <= 40


def test_threads_are_woken_and_parked_at_every_stage():
    """With one thread no stage has two batches at once; with four each has, at some time, where the probe waits for a
    second one. Plans come first: a batch that waits for another one would else wait for ever."""
    together, inside, lock = set(), dict.fromkeys(SIZED, 0), threading.Condition()

    def probe(at, batch_index):
        if at not in inside:
            return
        with lock:
            inside[at] += 1
            if inside[at] > 1:
                together.add(at)
            lock.notify_all()
            lock.wait_for(lambda: at in together or alone, 5)
            inside[at] -= 1

    alone = True
    run_toy(PLANNER, mode="oac", probe=probe, device=forced([PARKED]))
    assert together == set()
    alone = False
    run_toy(PLANNER, mode="oac", probe=probe, device=forced([AWAKE]))
    assert together == set(SIZED)


def test_a_tuner_measures_a_real_run_and_changes_its_numbers(synchronous):
    """A link of 3 ms each way, one batch in flight to begin with: more would be faster, and is tried."""
    random.seed(0)
    *tables, _, pipeline = run_toy(ToyPlanner(batches=120), mode="oac", probe=SlowLink(0.0, 0.003), start=Setting(1))
    assert tuple(tables) == run_toy(ToyPlanner(batches=120), mode="sync")[:2]
    assert pipeline.tuner.kept.window > 2
