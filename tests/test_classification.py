"""AUC and the other metrics of clicks, against their definitions, in any pieces, and out of memory."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.classification import ClickMetrics
from marius_oac.errors import MariusOacError

scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32))


def naive(labels, probabilities):
    """By the definitions, pair by pair."""
    clicks = [p for label, p in zip(labels, probabilities, strict=True) if label]
    others = [p for label, p in zip(labels, probabilities, strict=True) if not label]
    wins = sum(Fraction((a > b) * 2 + (a == b), 2) for a in clicks for b in others)
    losses = []
    for label, p in zip(labels, probabilities, strict=True):
        safe = min(max(p, 1e-7), 1 - 1e-7)
        losses.append(-math.log(safe if label else 1 - safe))
    rate = sum(labels) / len(labels)
    loss = math.fsum(losses) / len(labels)
    base = -sum(q * math.log(q) for q in (rate, 1 - rate) if q)
    return {
        "auc": float(wins / (len(clicks) * len(others))) if clicks and others else math.nan,
        "log_loss": loss,
        "normalized_entropy": loss / base if base else math.nan,
        "calibration": math.fsum(probabilities) / sum(labels) if clicks else math.nan,
        "examples": len(labels),
    }


def measured(pieces, **options):
    with ClickMetrics(**options) as metrics:
        for labels, probabilities in pieces:
            metrics.add(np.array(labels, np.float32), np.array(probabilities, np.float32))
        return metrics.result()


@settings(deadline=None, max_examples=40)
@given(examples=st.lists(st.tuples(st.booleans(), scores), min_size=1, max_size=40), cut=st.integers(0, 40))
def test_the_definitions_in_any_pieces(examples, cut):
    labels, probabilities = zip(*examples, strict=True)
    whole = measured([(labels, probabilities)])
    expected = naive(labels, [float(np.float32(p)) for p in probabilities])
    for name, value in expected.items():
        assert whole[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name
    pieces = [(labels[cut:], probabilities[cut:]), (labels[:cut], probabilities[:cut])]
    assert str(measured(pieces)) == str(whole)


def test_more_examples_than_fit_into_memory_are_counted_exactly():
    generator = np.random.default_rng(0)
    labels = generator.random(3_000_000) < 0.3
    probabilities = generator.random(labels.size).astype(np.float32)
    found = measured(zip(np.split(labels, 30), np.split(probabilities, 30), strict=True), memory="40MB")
    ranks = np.empty(labels.size)
    values, inverse, counts = np.unique(probabilities, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    clicks = int(labels.sum())
    expected = (ranks[labels].sum() - clicks * (clicks + 1) / 2) / (clicks * (labels.size - clicks))
    assert found["auc"] == pytest.approx(expected, abs=1e-12) and found["examples"] == labels.size


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.5])
def test_what_is_no_probability_is_named(wrong):
    with ClickMetrics() as metrics, pytest.raises(MariusOacError, match=f"a predicted probability is {wrong}"):
        metrics.add(np.zeros(2, np.float32), np.array([0.5, wrong], np.float32))


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), ClickMetrics() as metrics:
        metrics.add(np.ones(1, np.float32), np.ones(1, np.float32))
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
