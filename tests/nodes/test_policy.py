"""Mode auto: what is expected of each mode, when it switches, and what it loses over an emulated day."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.gba.policy import EVIDENCE, TRIAL, Measured, Policy, expected_slowest, ideal_rates
from tests.nodes.load_days import day, run_auto, run_fixed
from tests.run_folders import each_with_one_of, slow

MARGIN, PATIENCE = 0.03, 2
PARTS = {"sync": 0.9, "gba": 0.9}
"""Of what a mode should do without costs, what it does."""


def stretch(mode, times, parts=PARTS, batches=5):
    """Trainers that take so long for an example, each time."""
    every = [np.full(batches, each) for each in times]
    return Measured(parts[mode] * ideal_rates(every)[mode], every)


def tried(parts=PARTS, margin=MARGIN, patience=PATIENCE):
    """A policy that has its trial behind it, with two trainers as fast as each other."""
    judge = Policy(margin, patience)
    follow(judge, [(1, 1)] * len(TRIAL), parts)
    return judge


def follow(judge, loads, parts=PARTS):
    """What is decided while trainers take so long."""
    return [judge.decide(stretch(judge.mode, times, parts)) for times in loads]


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_expected_slowest_is_that_of_all_combinations(samples):
    plain = np.mean([max(each) for each in itertools.product(*samples)])
    assert expected_slowest([np.array(each) for each in samples]) == pytest.approx(plain, rel=1e-9, abs=1e-12)


def test_sync_goes_at_the_slowest_ones_pace_and_gba_at_everybodys():
    rates = ideal_rates([np.array([0.5, 0.5]), np.array([0.5]), np.array([2.0])])
    assert rates == {"sync": 3 / 2.0, "gba": 2 + 2 + 0.5}
    jitter = ideal_rates([np.array([1.0, 3.0] * 80)] * 2)  # the slower of two takes 3 in three of four cases
    assert jitter == pytest.approx({"sync": 2 / 2.5, "gba": 1.0})


def test_trainers_that_grow_slow_together_cost_sync_no_jitter():
    times = np.repeat([1.0, 3.0], 80)
    assert ideal_rates([times] * 4) == pytest.approx({"sync": 4 / 2, "gba": 4 / 2})
    assert ideal_rates([times[80:84], times])["sync"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("gba, mode", [(0.8, "sync"), (0.92, "sync"), (0.94, "gba"), (1.2, "gba")])
def test_both_modes_are_tried_and_the_better_one_stays(gba, mode):
    """The first stretch of each is slow, as caches fill, and counts for nothing."""
    judge, found = Policy(MARGIN, PATIENCE), []
    for number in range(5):
        parts = {"sync": 0.9, "gba": gba}
        found.append(
            judge.decide(stretch(judge.mode, (1, 1), {k: v / (1 + 5 * (number % 2 == 0)) for k, v in parts.items()}))
        )
        if number == 3:
            assert found[-1].expected == pytest.approx({"sync": 2 * 0.9, "gba": 2 * gba})
    assert [each.mode for each in found[:4]] == ["sync", "gba", "gba", mode]
    assert [each.trial for each in found] == [True] * 4 + [False]


def test_clear_gains_are_taken_when_patience_ends_and_losses_too():
    """Switches at the second decision point after trainers change, both ways; the first asks to hurry."""
    parts = {"sync": 0.9, "gba": 0.7}
    quiet, loaded = [(1, 1, 1, 1)], [(1, 1, 1, 4)]
    found = follow(Policy(MARGIN, PATIENCE), quiet * 8 + loaded * 4 + quiet * 4, parts)[4:]
    assert [each.mode for each in found] == ["sync"] * 5 + ["gba"] * 4 + ["sync"] * 3
    assert [number for number, each in enumerate(found) if each.switches] == [5, 9]
    assert [number for number, each in enumerate(found) if each.hurry] == [4, 8]
    assert found[5].expected == pytest.approx({"sync": 0.9, "gba": 0.7 * 3.25})
    assert found[9].expected == pytest.approx({"sync": 3.6, "gba": 2.8})
    reasons = [found[number].reason for number in (0, 4, 9)]
    assert reasons == [
        "gba would gain -22.2%",
        "gba would gain +152.8%, 1 in a row: not yet",
        "gba gains -22.2%, 2 in a row",
    ]
    assert found[9].metrics().keys() == {"mode", "switches", "expected.sync", "expected.gba", "gain", "reason"}


@pytest.mark.parametrize("patience", [1, 2, 3, 5])
def test_patience_counts_decision_points(patience):
    found = follow(tried(patience=patience), [(1, 4)] * patience)
    assert [each.switches for each in found] == [False] * (patience - 1) + [True]


@settings(deadline=None)
@given(st.lists(st.floats(0.8, 1.5), min_size=1, max_size=40), st.integers(1, 4))
def test_a_switch_has_reasons_in_a_row_that_add_up(slowness, patience):
    judge, gains = tried(patience=patience), []
    for one in slowness:
        decision = judge.decide(stretch("sync", (1.0, one)))
        gains.append(math.log1p(decision.gain) - math.log1p(MARGIN))
        if decision.switches:
            last = gains[-patience:]
            assert len(last) == patience and min(last) > 0 and sum(each for each in gains if each > 0) >= EVIDENCE
            return
    assert not (min(gains) > 0 and len(gains) >= patience and sum(gains) >= EVIDENCE)


def test_a_stretch_in_a_hurry_teaches_nothing_of_costs():
    judge = tried()
    assert follow(judge, [(1, 4)])[0].hurry
    follow(judge, [(1, 4)], {"sync": 0.1, "gba": 0.1})
    assert judge.mode == "gba"
    (after,) = follow(judge, [(1, 4)], {"gba": 0.9})
    assert after.expected == pytest.approx({"sync": 0.9 * 0.5, "gba": 0.9 * 1.25})


def test_one_bad_stretch_changes_nothing():
    assert not any(each.switches for each in follow(tried(), [(1, 1), (1, 20)] * 50))


def test_gains_below_the_margin_never_count_and_small_ones_when_they_last():
    judge = tried()
    below, above = (1, 1.05), (1, 1.12)  # gba would gain 2.5 % and 6 %
    assert not any(each.switches for each in follow(judge, [below] * 500))
    found = [each.switches for each in follow(judge, [above] * 20)]
    assert found.index(True) + 1 == math.ceil(EVIDENCE / math.log(1.06 / 1.03))


@pytest.mark.parametrize("gain, leaves", [(0.02, False), (0.005, False), (-0.05, True)])
def test_gba_is_left_when_it_gains_next_to_nothing(gain, leaves):
    judge = tried({"sync": 0.9, "gba": 1.0})
    assert judge.mode == "gba"
    found = follow(judge, [(1, 1)] * 200, {"gba": 0.9 * (1 + gain), "sync": 0.9})
    assert any(each.switches for each in found) == leaves


def test_what_gba_must_gain_is_the_users_to_say():
    judge = tried(margin=1.0)
    assert not any(each.switches for each in follow(judge, [(1, 2)] * 100))  # 50 %
    assert [each.mode for each in follow(judge, [(1, 4)] * 2)] == ["sync", "gba"]  # 150 %
    assert [each.mode for each in follow(judge, [(1, 2)] * 2)] == ["gba", "sync"]


@pytest.mark.parametrize("seed", range(5))
def test_noise_flips_nothing(seed):
    """A thousand stretches of two trainers whose jitter costs sync less than the margin."""
    draw, judge = np.random.default_rng(seed), tried()
    for _ in range(1000):
        times = [np.exp(0.04 * draw.standard_normal(20)) for _ in range(2)]
        assert not judge.decide(Measured(1.76 * math.exp(0.02 * draw.standard_normal()), times)).switches


def test_a_trainer_without_a_batch_is_taken_to_be_as_it_was():
    judge = tried({"sync": 0.9, "gba": 1.0})
    follow(judge, [(1, 4)], {"gba": 1.0})
    decision = judge.decide(Measured(1.25, [np.ones(3), np.zeros(0)]))
    assert decision.expected == pytest.approx({"sync": 0.9 * 2 / 4, "gba": 1.25})


def test_of_nothing_nothing_follows():
    judge = tried()
    for nothing in (Measured(0.0, [np.ones(2)] * 2), Measured(math.nan, [np.ones(2)] * 2)):
        decision = judge.decide(nothing)
        assert (decision.mode, decision.switches, decision.expected) == ("sync", False, {})
    assert Policy(MARGIN, PATIENCE).decide(Measured(1.0, [np.zeros(0)])).reason == "nothing was measured"


COSTS = [(0.0, 0.0), (0.05, 0.1), (0.1, 0.0), (0.0, 0.3)]


@pytest.mark.parametrize(
    "costs, team",
    each_with_one_of(COSTS, [(2, 0.05), (8, 0.1)])
    + [slow(costs, team) for costs in COSTS for team in ((4, 0.2), (16, 0.05), (16, 0.2))],
)
def test_a_day_costs_little(team, costs):
    """Four phases of 100 stretches: at least 0.96 of the better fixed mode in each, one switch in each at most."""
    workers, jitter = team
    loads = day(workers)
    better = np.maximum(*(run_fixed(mode, loads, jitter, 100, costs) for mode in ("sync", "gba")))
    examples, switches = run_auto(Policy(MARGIN, PATIENCE), loads, jitter, 100, costs)
    assert (examples / better).min() >= 0.96, examples / better
    assert switches.max() <= 1
