"""Timestamps of rows where steps are of another size than global batches."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.gba.modes import Clock, make_mode

KINDS = ("sync", "gba", "async", "bsp", "hop-bs", "hop-bw")


@st.composite
def clocks(draw):
    kind, parts, workers = draw(st.sampled_from(KINDS)), draw(st.integers(1, 7)), draw(st.integers(1, 6))
    mode = make_mode(kind, workers, parts, 1, b2=draw(st.integers(1, 25)), b3=draw(st.integers(0, workers - 1)))
    return Clock(mode, parts, draw(st.integers(0, 50)))


@settings(deadline=None, max_examples=150)
@given(clocks(), st.integers(1, 40))
def test_timestamps_ascend_and_are_never_above_those_of_lockstep(clock, batches):
    """Adam's corrections and staleness of a later stretch count on it."""
    total, gradients = batches * clock.parts, clock.mode.aggregate
    steps = clock.first + np.arange(-(-total // gradients))  # as many as there can be; the last may be a smaller one
    found = np.array([clock.timestamp(int(step)) for step in steps])
    assert found[0] == clock.first and (np.diff(found) >= 0).all()
    assert found[-1] <= clock.first + batches - 1
    for number, timestamp in enumerate(found):
        gone = number * gradients  # gradients that the steps before have taken
        assert timestamp == clock.first + gone // clock.parts, "whole global batches' worth"
    if clock.mode.kind in ("gba", "sync"):
        assert np.array_equal(found, steps) and found[-1] == clock.first + batches - 1


@settings(deadline=None, max_examples=150)
@given(clocks())
def test_steps_of_timestamps(clock):
    steps = clock.first + np.arange(60)
    found = np.array([clock.timestamp(int(step)) for step in steps])
    back = clock.steps(found)
    assert back.dtype == np.int64
    for step, timestamp, first in zip(steps, found, back, strict=True):
        assert first == min(each for each, when in zip(steps, found, strict=True) if when >= timestamp) <= step
    before = np.arange(-1, clock.first)
    assert np.array_equal(clock.steps(before), before), "those from before the stretch stay"
    assert clock.steps(np.zeros(0, np.int64)).shape == (0,)
    if clock.mode.kind in ("gba", "sync"):
        assert np.array_equal(back, steps)
