"""Metrics of a user's own: the suites that check them, and the mistakes that these find."""

import numpy as np
import pytest

from marius_oac.errors import ConfigError
from marius_oac.evaluation.own_metrics import class_metrics_of, ranking_metrics
from marius_oac.testing.metrics import check_class_metric, check_ranking_metric
from tests.models import own_parts as own


def test_metrics_of_a_users_pass():
    for metric in (own.example.median_rank, own.reciprocal, own.worst):
        check_ranking_metric(metric)
    check_class_metric(own.hit_rate)


def first(ranks):
    return ranks[0]


def sorts(ranks):
    ranks.sort()
    return ranks[len(ranks) // 2]


def each_rank(ranks):
    return 1 / ranks


def sampled(ranks):
    return np.random.default_rng().choice(ranks, 100).mean()


def nothing(ranks):
    print(ranks.mean())


def spread(ranks):
    return ranks.mean() / ranks.std() if len(ranks) > 1 and ranks.std() else float("nan")


@pytest.mark.parametrize(
    "metric, said",
    [(first, "depends on the order"), (sorts, "changes its arguments"), (each_rank, r"returns float64 \[50\], not a"),
     (sampled, "in the same call, made again"), (nothing, "nothing returns NoneType, not a number"),
     (spread, "is nan for ranks of 1 to 1")],
)  # fmt: skip
def test_mistakes_in_a_metric_of_ranks_are_found(metric, said):
    with pytest.raises(AssertionError, match=said):
        check_ranking_metric(metric)


def first_hit(classes, scores):
    return float(scores[0].argmax() == classes[0])


def scaled(classes, scores):
    scores /= scores.max()
    return scores.mean()


def recalls(classes, scores):
    return [(scores[classes == each].argmax(1) == each).mean() for each in range(scores.shape[1])]


def of_no_class(classes, scores):
    return float("nan")


@pytest.mark.parametrize(
    "metric, said",
    [(first_hit, "depends on the order"), (scaled, "changes its arguments"), (recalls, "returns list, not a number"),
     (of_no_class, "is nan where nodes are of all classes")],
)  # fmt: skip
def test_mistakes_in_a_metric_of_classes_are_found(metric, said):
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match=said):
        check_class_metric(metric)


MISTAKES = """
number = 3

def fails(*arrays):
    return arrays[0].nothing

def writes(*arrays):
    arrays[0][:] = 0
    return 1

def none(*arrays):
    pass

def text(*arrays):
    return "0.5"

def two(ranks, classes, scores):
    return 1
"""


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("load", [ranking_metrics, class_metrics_of])
@pytest.mark.parametrize(
    "name, said",
    [("fails", "{path}:5: AttributeError: 'numpy.ndarray' object has no attribute 'nothing'"),
     ("writes", "{path}:8: ValueError: assignment destination is read-only"),
     ("none", "{path}:none returns NoneType, not a number"), ("text", "{path}:text returns str, not a number"),
     ("two", "{path}: TypeError: two() missing"), ("number", "{path} has no function 'number'"),
     ("absent", "{path} has no function 'absent'")],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_and_key(tmp_path, load, name, said):
    path = tmp_path / "mine.py"
    path.write_text(MISTAKES)
    with pytest.raises(ConfigError) as caught:
        load([f"{path}:{name}"])
    assert str(caught.value).startswith(f"evaluation.metrics: {said.format(path=path)}")
