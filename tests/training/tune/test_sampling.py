"""What Optuna is asked: the same of the same trials, whoever asks; values within the space; the median rule."""

import math
import statistics
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.config.space import SpaceConfig
from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import json_text
from marius_oac.runtime.files.untrusted import parse_json
from marius_oac.training.tune.sampling import Sampling
from marius_oac.training.tune.trials import Trial

SPACE = {
    "rate": {"low": 0.01, "high": 1, "log": True},
    "share": {"low": 0, "high": 1, "step": 0.25},
    "count": {"low": 100, "high": 500, "step": 100},
    "size": {"low": 1, "high": 64, "log": True},
    "kind": ["a", None, True, 3, 0.5],
}


def space(**others):
    return SpaceConfig.model_validate({"space": SPACE, "startup": 3, **others})


def finished(trial, value, state="complete"):
    found = trial.model_copy(update={"state": state, "curve": ((1, value / 2), (2, value)),
                                     "value": value if state == "complete" else None})  # fmt: skip
    return parse_json(json_text(found.model_dump()).encode(), "trial", Trial)  # as of its file


def score(values):
    return -abs(math.log(values["rate"]) + 2) + values["share"]


def search(number, **others):
    """Trials that end one after the other, each asked of a process of its own."""
    trials = []
    for each in range(number):
        trial = Trial(number=each, values=Sampling(space(**others)).next_values(trials))
        trials.append(finished(trial, score(trial.values), "pruned" if each == 2 else "complete"))
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_lie_in_the_space_and_the_same_trials_have_the_same_next(sampler):
    trials = search(8, sampler=sampler)
    for values in (trial.values for trial in trials):
        assert 0.01 <= values["rate"] <= 1 and values["share"] in (0, 0.25, 0.5, 0.75, 1)
        assert values["count"] in range(100, 501, 100) and values["size"] in range(1, 65)
        assert values["kind"] in SPACE["kind"] and {type(values["count"]), type(values["size"])} == {int}
    assert trials == search(8, sampler=sampler)
    assert len({trial.values["rate"] for trial in trials}) == 8
    assert trials[0].values != search(1, sampler=sampler, seed=1)[0].values


def test_what_was_learned_counts():
    """All but the first trials of `tpe` are drawn by what the earlier ones had."""
    trials = search(6)
    worse = [trial.model_copy(update={"value": -trial.value}) if trial.value else trial for trial in trials]
    asked = Sampling(space())
    assert asked.next_values(trials) != asked.next_values(worse)
    failed = [trial.model_copy(update={"state": "failed"}) if trial.state == "pruned" else trial for trial in trials]
    assert asked.next_values(failed[:3]) != asked.next_values(trials[:3])  # a failed one is none of the first three
    assert asked.next_values(trials[:2]) == asked.next_values(worse[:2])


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=5, max_size=8),
       st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(0, 1))  # fmt: skip
def test_a_trial_is_stopped_where_it_is_below_the_median_of_the_others(curves, own, judged):
    asked, values = Sampling(space()), Sampling(space()).next_values([])
    trials = [
        Trial(number=number, values=values, state="complete", value=1.0, curve=tuple(enumerate(curve, 1)))
        for number, curve in enumerate(curves)
    ]
    trial = Trial(number=len(trials), values=values, curve=tuple(enumerate(own, 1)))
    expected = trial
    for count in range(judged + 1, min(len(own), 2) + 1):
        there = [curve[count - 1] for curve in curves if len(curve) >= count]
        if there and max(own[:count]) < statistics.median(there):
            expected = trial.model_copy(update={"state": "pruned", "curve": trial.curve[:count]})
            break
    assert asked.pruned(trial, [*trials, trial], judged, epochs=3) == expected
    assert Sampling(space(pruner="none")).pruned(trial, trials, judged, epochs=3) == trial


def test_without_optuna_or_what_a_sampler_needs(monkeypatch):
    with pytest.raises(InputError, match="sampler: cmaes: needs cmaes: pip install cmaes"):
        monkeypatch.setitem(sys.modules, "cmaes", None)
        Sampling(space(sampler="cmaes"))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"needs Optuna: pip install '/path/to/marius_oac\[tune\]'"):
        Sampling(space())
