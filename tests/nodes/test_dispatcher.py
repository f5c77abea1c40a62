"""Who gets which batch and token, and who waits."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import InputError
from marius_oac.nodes.gba.dispatcher import WAIT, Dispatcher
from marius_oac.nodes.gba.modes import Mode, make_mode
from tests.nodes.naive_gba import decay, token

KINDS = ("sync", "gba", "async", "bsp", "hop-bs", "hop-bw")


def dispatcher(kind, aggregate, end=1000, step=0, first=0, bound=0):
    return Dispatcher(Mode(kind=kind, aggregate=aggregate, bound=bound), first, end, step)


@given(st.integers(1, 9), st.integers(0, 50), st.integers(0, 5), st.integers(0, 5))
def test_tokens_of_gba_are_those_of_the_token_list(capacity, batches, first, step):
    found = dispatcher("gba", capacity, first + batches, step, first)
    dispatches = [found.ask(i % 4) for i in range(batches)]
    assert [each.batch for each in dispatches] == list(range(first, first + batches))
    assert [each.token for each in dispatches] == [step + token(i, capacity) for i in range(batches)]
    assert found.ask(0) is None and found.outstanding == batches == found.tokens
    assert len(set(each.token for each in dispatches)) == math.ceil(batches / capacity)  # K global steps


def test_a_lost_token_is_made_good():
    """Else 3 lost ones would put every later token a step ahead, and gradients that are 4 steps late pass for 3."""
    found = dispatcher("gba", 3)
    assert [found.ask(worker).token for worker in (0, 1, 2, 3)] == [0, 0, 0, 1]
    assert found.lost(0) == ([0], [])
    assert found.lost(3) == ([3], [])
    assert [found.ask(1).token for _ in range(6)] == [1, 1, 1, 1, 2, 2]
    assert found.batches_lost == 2


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_tokens_ascend_and_are_those_of_a_list_without_the_lost_ones(data):
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    capacity, workers = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    found, out = dispatcher("gba", capacity, 200), {}
    lost = before = 0
    for dispatched in range(200):
        worker = draw.randrange(workers)
        dispatch = found.ask(worker)
        assert dispatch == (dispatched, max(before, token(dispatched - lost, capacity)))
        before = dispatch.token
        out.setdefault(worker, []).append(dispatched)
        if draw.random() < 0.3:
            gone = out.pop(worker)
            assert found.lost(worker) == (gone, [])
            lost += len(gone)
        elif draw.random() < 0.8:
            for batch in out.pop(worker):
                found.done(worker, batch)
    assert found.ask(0) is None and found.batches_lost == lost


@pytest.mark.parametrize("kind", ["async", "bsp"])
def test_async_and_bsp_deal_the_step_of_the_moment(kind):
    found = dispatcher(kind, 2)
    assert found.ask(0) == (0, 0)
    assert found.stepped(3) == []
    assert found.ask(0) == (1, 3) and found.ask(1) == (2, 3)


def test_in_sync_who_has_had_its_batch_waits_for_the_step():
    found = dispatcher("sync", 2)
    assert (found.ask(0), found.ask(1)) == ((0, 0), (1, 0))
    assert found.done(0, 0) == [] and found.ask(0) is WAIT
    assert found.done(1, 1) == []
    assert found.stepped(1) == [0]
    assert (found.ask(0), found.ask(1)) == ((2, 1), (3, 1))


def test_in_sync_few_workers_share_the_places_and_many_wait_for_one():
    found = dispatcher("sync", 5)
    found.joined(1)
    assert [found.ask(0) for _ in range(4)] == [(0, 0), (1, 0), (2, 0), WAIT]
    assert [found.ask(1) for _ in range(3)] == [(3, 0), (4, 0), WAIT]
    found = dispatcher("sync", 2)
    assert [found.ask(worker) for worker in range(3)] == [(0, 0), (1, 0), WAIT]


def test_in_sync_a_lost_place_is_another_workers():
    found = dispatcher("sync", 2)
    assert [found.ask(worker) for worker in (0, 1)] == [(0, 0), (1, 0)]
    found.done(0, 0)
    assert found.ask(0) is WAIT
    assert found.lost(1) == ([1], [0])
    assert found.ask(0) == (2, 0)
    assert found.ask(0) is WAIT


def test_a_torn_batch_keeps_its_place_and_is_lost():
    found = dispatcher("sync", 2)
    assert [found.ask(worker) for worker in (0, 1)] == [(0, 0), (1, 0)]
    assert found.ask(0) is WAIT
    assert found.lost(1, torn=[1]) == ([1], [])
    assert found.batches_lost == 1
    assert found.stepped(1) == [0]
    tokens = dispatcher("gba", 1)
    assert (tokens.ask(0), tokens.ask(1)) == ((0, 0), (1, 1))
    tokens.lost(1, torn=[1])
    assert tokens.ask(0) == (2, 2)


def test_in_hop_bw_every_live_worker_has_a_place():
    found = dispatcher("hop-bw", 2)
    for worker in range(3):
        found.joined(worker)
    assert [found.ask(worker) for worker in range(3)] == [(0, 0), (1, 0), (2, 0)]
    found.done(0, 0), found.done(1, 1)
    assert found.ask(0) is WAIT
    assert found.stepped(1) == [0]
    assert (found.ask(0), found.ask(1)) == ((3, 1), (4, 1))
    found.done(2, 2)  # it came too late
    assert found.ask(2) == (5, 1)
    found.lost(1), found.lost(2)
    assert found.ask(0) == (6, 1), "one worker alone makes the step"
    assert found.ask(0) is WAIT


def test_in_hop_bw_what_is_lost_of_an_earlier_step_frees_no_place():
    found = dispatcher("hop-bw", 3)
    for worker in range(4):
        found.joined(worker)
    assert [found.ask(worker) for worker in range(4)] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    found.stepped(1)
    assert [found.ask(worker) for worker in (0, 1)] == [(4, 1), (5, 1)]
    assert found.lost(2) == ([2], []) and found.lost(3) == ([3], [])
    assert [found.ask(worker) for worker in (0, 1)] == [(6, 1), WAIT], "two workers, three places"


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_in_hop_bs_the_fastest_is_so_many_batches_ahead(bound):
    found = dispatcher("hop-bs", 1, bound=bound)
    found.joined(1)
    for batch in range(bound + 1):
        assert found.ask(0) == (batch, 0)
        assert found.done(0, batch) == []
    assert found.ask(0) is WAIT
    assert found.ask(1) == (bound + 1, 0)
    assert found.done(1, bound + 1) == [0]
    assert found.ask(0) == (bound + 2, 0)


def test_in_hop_bs_nobody_waits_for_the_dead_nor_for_who_comes_late():
    found = dispatcher("hop-bs", 1)
    found.joined(1)
    for batch in range(4):
        assert found.ask(0) == (batch, 0)
        found.done(0, batch)
        if batch == 0:
            assert found.ask(0) is WAIT
            assert found.lost(1) == ([], [0])
    found.joined(2)
    assert found.ask(0) == (4, 0), "it begins beside the slowest"


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_is_told_to_all(kind):
    found = dispatcher(kind, 2 if kind != "hop-bs" else 1, end=1)
    found.joined(1)
    assert found.ask(0) == (0, 0)
    assert found.ask(1) is None and not found.finished
    found.done(0, 0)
    assert found.ask(0) is None and found.finished


def test_who_waits_is_woken_when_no_data_are_left():
    found = dispatcher("hop-bs", 1, end=3)
    found.joined(1)
    found.ask(0), found.done(0, 0)
    assert found.ask(0) is WAIT
    assert found.ask(1) == (1, 0) and found.ask(1) is WAIT
    assert found.stop() == [0, 1]
    assert found.ask(0) is None and found.next == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_on_in_any_mode(kind):
    found = dispatcher(kind, 1, end=9)
    dispatch = found.ask(3)
    with pytest.raises(ValueError, match="1 batches are outstanding"):
        found.state()
    found.done(3, dispatch.batch)
    found.stepped(1)
    for other in KINDS:
        again = dispatcher(other, 1, end=9)
        again.load(found.state())
        assert again.ask(5) == (1, 1) and again.tokens == 2


def test_a_worker_is_done_with_what_it_has():
    found = dispatcher("gba", 1)
    for worker, batch in ((0, 0), (7, 3)):
        with pytest.raises(ValueError, match="has no batch"):
            found.done(worker, batch)


def test_modes_by_their_numbers():
    made = {kind: make_mode(kind, 8, 64, 8, b1=2, b2=5, b3=3) for kind in KINDS}
    assert {kind: mode.aggregate for kind, mode in made.items()} == {
        "sync": 8, "gba": 8, "async": 1, "bsp": 5, "hop-bs": 1, "hop-bw": 5,
    }  # fmt: skip
    assert make_mode("gba", 3, 64, 4).aggregate == 16


WRONG = [
    ("ssp", 8, 64, 8, {}, "there is no mode"),
    ("gba", 8, 64, 7, {}, "not a multiple"),
    ("sync", 8, 8, 16, {}, "not a multiple"),
    ("gba", 0, 64, 8, {}, "0 workers"),
    ("bsp", 8, 64, 8, {"b2": 0}, "have 0 gradients"),
    ("hop-bs", 8, 64, 8, {"b1": -1}, "ahead"),
    ("hop-bw", 8, 64, 8, {"b3": 8}, "8 of 8"),
    ("gba", 8, 64, 8, {"decay": "linear"}, "no such decay"),
    ("gba", 8, 64, 8, {"rows_over": "rows"}, "division of rows"),
    ("gba", 8, 64, 8, {"rate": 0.0}, "rate 0.0"),
    ("gba", 8, 64, 8, {"threshold": -1}, "threshold -1"),
]


@pytest.mark.parametrize(("kind", "workers", "whole", "local", "more", "says"), WRONG)
def test_numbers_that_make_no_mode(kind, workers, whole, local, more, says):
    with pytest.raises(InputError, match=says):
        make_mode(kind, workers, whole, local, **more)


@given(
    st.sampled_from(KINDS), st.sampled_from(("threshold", "polynomial", "exponential")), st.integers(0, 5),
    st.floats(0, 3), st.floats(0.01, 1), st.integers(-5, 30),
)  # fmt: skip
def test_weights_are_those_of_equation_1_and_its_relatives(kind, decay_kind, threshold, power, rate, staleness):
    mode = Mode(kind=kind, aggregate=1, decay=decay_kind, threshold=threshold, power=power, rate=rate)
    assert mode.weights(np.array([staleness])) == pytest.approx([decay(mode, staleness)], rel=1e-6)


def test_a_dealer_stops_at_a_whole_global_batch():
    found = dispatcher("gba", 4, end=30, first=3)
    assert [found.ask(0).batch for _ in range(3)] == [3, 4, 5]
    assert found.stop(4) == [] and found.end == 8
    assert [found.ask(0) for _ in range(3)] == [(6, 0), (7, 1), None]
    found = dispatcher("sync", 4, end=6)
    assert [found.ask(0).batch for _ in range(4)] == [0, 1, 2, 3] and found.ask(0) is WAIT
    assert found.stop(4) == [0] and found.next == found.end == 4
    found = dispatcher("gba", 4, end=6)
    for _ in range(5):
        found.ask(0)
    assert found.stop(4) == [] and found.end == 6
