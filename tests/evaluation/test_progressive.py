"""Metrics in bounded memory of examples that are predicted just before they are trained on, against exact ones."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.errors import MariusOacError
from marius_oac.evaluation import progressive
from marius_oac.evaluation.binary_metrics import ClickMetrics
from marius_oac.evaluation.progressive import ProgressiveMetrics, merged

EDGES = [0.0, 2.0**-30, 2.0**-24, 2.0**-24 * 1.5, 0.25, 0.4999, 0.5, 0.5001, 0.75, 1 - 2.0**-24, 1.0]
examples = st.tuples(st.booleans(), st.sampled_from(EDGES) | st.floats(0, 1, width=32))


def step_of(score):
    """The step that a score is rounded down to, towards 0 or 1, in Python floats."""
    near = max(min(score, 1 - score), 2.0**-24)
    power = 2.0 ** math.floor(math.log2(near))
    return math.copysign(power * math.floor(near / power * 16384), score - 0.5) if near < 0.5 else 0.0


def naive_auc(several):
    """Of pairs; scores of one step are equal, and of others as the scores are."""
    wins, ones, zeros = 0.0, [s for label, s in several if label], [s for label, s in several if not label]
    for one in ones:
        for zero in zeros:
            wins += 0.5 if step_of(one) == step_of(zero) else float(one > zero)
    return wins / (len(ones) * len(zeros)) if ones and zeros else math.nan


def arrays(several):
    labels, scores = zip(*several, strict=True)
    return np.array(labels, np.float32), np.array(scores, np.float32)


@settings(deadline=None, max_examples=60)
@given(st.lists(examples, min_size=1, max_size=30), st.integers(0, 30), st.booleans())
@example([(True, 0.5), (False, 0.25), (True, 0.5), (False, 0.25)], 2, False)  # scores of two processes alike
def test_all_but_the_auc_is_exact_and_that_counts_steps(several, cut, together):
    labels, scores = arrays(several)
    ours = [ProgressiveMetrics(), ProgressiveMetrics()]
    for each, part in zip((ours[0], ours[0 if together else 1]), (np.s_[:cut], np.s_[cut:]), strict=True):
        each.add(labels[part], scores[part])
    found = merged([each.taken() for each in ours])
    with ClickMetrics() as exact:
        exact.add(labels, scores)
        wanted = exact.result()
    assert list(found) == list(wanted)
    assert found.pop("auc") == pytest.approx(naive_auc(several), rel=1e-12, nan_ok=True)
    wanted.pop("auc")
    assert found == pytest.approx(wanted, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("mean, spread", [(-3.0, 1.0), (0.0, 3.0), (4.0, 0.5)])
def test_the_auc_of_many_examples_is_near_the_exact_one(mean, spread):
    generator = np.random.default_rng(1)
    logits = generator.normal(mean, spread, 200_000)
    labels = (generator.random(logits.size) < 1 / (1 + np.exp(-logits - 0.3))).astype(np.float32)
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    ours = ProgressiveMetrics()
    ours.add(labels, scores)
    with ClickMetrics() as exact:
        exact.add(labels, scores)
        assert merged([ours.taken()])["auc"] == pytest.approx(exact.result()["auc"], abs=4e-7)


def test_what_was_taken_is_gone_and_nothing_has_no_metrics():
    ours = ProgressiveMetrics()
    ours.add(*arrays([(True, 0.7), (False, 0.2)]))
    first = merged([ours.taken()])
    assert (first["auc"], first["examples"]) == (1.0, 2)
    assert merged([ours.taken()]) == {} == merged([])
    ours.add(*arrays([(True, 0.1)]))
    assert merged([ours.taken()])["log_loss"] == pytest.approx(-math.log(0.1), rel=1e-6)


def test_a_probability_that_is_none_is_refused():
    with pytest.raises(MariusOacError, match="^a probability is NaN$"):
        ProgressiveMetrics().add(*arrays([(True, 0.5), (False, math.nan)]))


def test_sums_go_beyond_64_bits():
    units = np.array([2**62 + 12345, 2**62 + 1, 2**62 + 2, 7])
    assert progressive._sum(units) == sum(units.tolist())
