"""Quality by parts: groups against loops, bins of predictions, planes of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.evaluation import quality
from marius_oac.evaluation.link_prediction import evaluate, ranks
from marius_oac.evaluation.quality import by_degree, by_relation, calibration, degrees_of, plane, sample
from tests.evaluation.test_evaluate import KnownAnswers, make_edges, make_scorer


@given(st.integers(1, 30), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_groups_are_those_of_loops(count, seed):
    random = np.random.default_rng(seed)
    edges, train = make_edges(random, count, 20), make_edges(random, 60, 20)
    found, degrees = random.integers(2, 50, (2, count)) / 2, degrees_of(train, 20)
    assert degrees.tolist() == [
        sum((edge[0] == node) + (edge[2] == node) for edge in train.tolist()) for node in range(20)
    ]
    relations, answers = {}, {}
    for number, (head, relation, tail) in enumerate(edges.tolist()):
        for side, node in enumerate((head, tail)):
            relations.setdefault(f"r{relation}", []).append(1 / found[side, number])
            low = 1 << (int(degrees[node]).bit_length() - 1) if degrees[node] else 0
            name = str(low) if low < 2 else f"{low}-{2 * low - 1}"
            answers.setdefault(name, []).append(1 / found[side, number])
    by = by_relation(found, edges[:, 1], lambda ids: [f"r{each}" for each in ids])
    assert {each.name: (each.count, pytest.approx(each.mrr)) for each in by} == {
        name: (len(each), np.mean(each)) for name, each in relations.items()
    }
    assert [each.count for each in by] == sorted((each.count for each in by), reverse=True)
    by = by_degree(found, edges[:, [0, -1]].T, degrees)
    assert {each.name: (each.count, pytest.approx(each.mrr)) for each in by} == {
        name: (len(each), np.mean(each)) for name, each in answers.items()
    }
    assert [int(each.name.split("-")[0]) for each in by] == sorted(int(each.name.split("-")[0]) for each in by)


def test_ranks_are_those_that_metrics_are_made_of():
    scorer, edges = make_scorer("distmult", 2, 40, 1), make_edges(np.random.default_rng(1), 30, 40)
    for known in (None, KnownAnswers.build([edges], edges, 3)):
        found = evaluate(scorer, edges, known)
        sides = found.unfiltered if known is None else found.filtered
        heads, tails = (1 / ranks(scorer, edges, known)).mean(axis=1)
        assert (heads, tails) == pytest.approx((sides.heads.mrr, sides.tails.mrr))


def test_bins_hold_as_many_neighbouring_predictions():
    random = np.random.default_rng(0)
    probabilities = random.random(1003, np.float32)
    labels = (random.random(1003) < probabilities).astype(np.float32)
    bins = calibration(labels, probabilities)
    assert sum(each.count for each in bins) == 1003 and {each.count for each in bins} == {50, 51} and len(bins) == 20
    ascending = np.sort(probabilities)
    assert bins[0].predicted == pytest.approx(ascending[:51].mean()) and bins[-1].predicted == pytest.approx(
        ascending[-50:].mean()
    )
    assert bins[0].clicked == pytest.approx(labels[probabilities <= ascending[50]].mean())
    assert calibration(labels[:3], probabilities[:3])[0].count == 1 and calibration(labels[:0], probabilities[:0]) == []


def test_a_plane_shows_where_rows_vary_most(monkeypatch):
    random = np.random.default_rng(0)
    rows = np.zeros((500, 5), np.float32)
    rows[:, 3], rows[:, 1] = 7 + 10 * random.normal(size=500), random.normal(size=500)
    found = plane(rows, 0)
    assert found.rows == 500 and found.points.shape == (500, 2) and sum(found.shares) == pytest.approx(1)
    assert np.abs(found.points[:, 0]) == pytest.approx(np.abs(rows[:, 3] - rows[:, 3].mean(dtype=np.float64)), abs=0.1)
    assert np.corrcoef(found.points[:, 0], rows[:, 3])[0, 1] > 0.999, "directions have a sign of their own"
    assert found.shares[0] == pytest.approx(100 / 101, abs=0.01)
    assert plane(np.ones((9, 4), np.float32), 0) is None and plane(rows[:2], 0) is None
    assert plane(np.full((9, 4), np.nan, np.float32), 0) is None and plane(rows[:, :1], 0) is None
    monkeypatch.setattr(quality, "MOST_POINTS", 100)
    assert plane(rows, 0).points.shape == (100, 2) and plane(rows, 0).rows == 500


def test_a_sample_is_of_all_places_and_the_same_again():
    drawn = sample(1000, 300, 5)
    assert len(set(drawn.tolist())) == 300 and (np.diff(drawn) > 0).all() and drawn.max() > 900 and drawn.min() < 100
    assert sample(1000, 300, 5).tolist() == drawn.tolist() != sample(1000, 300, 6).tolist()
    assert sample(3, 300, 5).tolist() == [0, 1, 2]
