"""Metrics by functions of the user's, `evaluation.metrics: [FILE.py:NAME, ...]`, which are reported by NAME.

A metric of ranks is called with ranks, float64 [n], of n answers from 1 on, in halves where candidates tie. A metric of
classes is called with the nodes' classes, int64 [n], and with a score of each class before the softmax, float32
[n, classes]. It returns a number; NaN stands for one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from numbers import Real
from typing import Any

import numpy as np

from marius_oac.config.parts import own_file
from marius_oac.errors import ConfigError
from marius_oac.models.compute.user_code import admit_names, blaming, load_own
from marius_oac.types import present

KEY = "evaluation.metrics"
Metric = Callable[..., float]


def ranking_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The metrics of ranks of these FILE.py:NAME, by NAME.

    Raises:
        ConfigError: one can't be loaded, or a metric fails on a few ranks; also when a metric is called, if it fails or
            returns no number.
    """
    return _load(names, np.array([1.0, 2.5, 40.0]))


def class_metrics_of(names: Sequence[str], classes: int = 2) -> dict[str, Metric]:
    """The metrics of this number of classes, by NAME; see `ranking_metrics`."""
    labels = np.arange(2 * classes) % classes
    return _load(names, labels, np.eye(classes, dtype=np.float32)[labels])


def admit_metrics(names: Collection[str], known: Collection[str]) -> None:
    """Trusts metrics that the caller has named and the run has not; those are `known`. Raises as `admit_names`."""
    admit_names([name for name in names if name not in known], trust=True)


def number(name: str, metric: Metric, *arrays: np.ndarray) -> float:
    """What a metric returns for these arrays, which it can't change. Raises ConfigError if it is no number."""
    given = [each.view() for each in arrays]
    for each in given:
        each.flags.writeable = False
    value: Any = metric(*given)
    if isinstance(value, np.ndarray) and not value.shape:
        value = value[()]
    if not isinstance(value, Real):
        found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ConfigError(f"{name} returns {found}, not a number", KEY)
    return float(value)


def _load(names: Sequence[str], *sample: np.ndarray) -> dict[str, Metric]:
    metrics = {name.rpartition(":")[2]: _metric(name) for name in names}
    for metric in metrics.values():
        metric(*sample)
    return metrics


def _metric(name: str) -> Metric:
    path, attribute = present(own_file(name))
    found = load_own(path, attribute, KEY)
    if not callable(found):
        raise ConfigError(f"{path} has no function {attribute!r}", KEY)

    def metric(*arrays: np.ndarray) -> float:
        with blaming(path, KEY):
            return number(name, found, *arrays)

    return metric
