"""What a user's metric must do.

from marius_oac.testing.metrics import check_class_metric, check_ranking_metric

def test_my_metrics():
    check_ranking_metric(my_metric_of_ranks)
    check_class_metric(my_metric_of_classes)
"""

from __future__ import annotations

import math

import numpy as np

from marius_oac.errors import ConfigError
from marius_oac.evaluation.own_metrics import Metric, number

_COUNT = 50


def check_ranking_metric(metric: Metric) -> None:
    """Checks that a metric returns a finite number for ranks, float64 [n], does not change them, and does not depend on
    their order or on chance.

    Raises:
        AssertionError: something is wrong.
    """
    random = np.random.default_rng(0)
    ranks = random.integers(2, 200, _COUNT) * 0.5  # candidates tie: halves
    for each in (ranks, np.ones(_COUNT), np.ones(1), np.array([1e9])):
        value = _number(metric, each)
        assert math.isfinite(value), f"the metric is {value} for ranks of {each.min():g} to {each.max():g}"
    _check(metric, ranks)


def check_class_metric(metric: Metric, classes: int = 3) -> None:
    """Checks that a metric returns a number for the nodes' classes, int64 [n], and their scores, float32 [n, classes],
    does not change them, and does not depend on the nodes' order or on chance.

    Raises:
        AssertionError: something is wrong.
    """
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, _COUNT)
    scores = random.normal(size=(_COUNT, classes)).astype(np.float32)
    value = _number(metric, labels, scores)
    assert math.isfinite(value), f"the metric is {value} where nodes are of all classes"
    _number(metric, labels[:1], scores[:1])
    _number(metric, np.zeros_like(labels), scores)
    _check(metric, labels, scores)


def _check(metric: Metric, *arrays: np.ndarray) -> None:
    value = _number(metric, *arrays)
    assert _number(metric, *arrays) == value, "the metric has another value in the same call, made again"
    order = np.random.default_rng(1).permutation(_COUNT)
    other = _number(metric, *(each[order] for each in arrays))
    assert math.isclose(other, value, rel_tol=1e-6, abs_tol=1e-9), "the metric depends on the order"


def _number(metric: Metric, *arrays: np.ndarray) -> float:
    try:
        return number(getattr(metric, "__name__", "the metric"), metric, *arrays)
    except ConfigError as error:
        raise AssertionError(error.message) from None
    except ValueError as error:
        if "read-only" in str(error):
            raise AssertionError("the metric changes its arguments") from error
        raise
