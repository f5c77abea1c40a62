"""What the rule of a row optimizer must do, the package's or a user's own.

from marius_oac.testing.row_optimizers import check_row_optimizer

def test_my_rule():
    check_row_optimizer(MyRule)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.update_rules import UpdateRule

_ROWS, _DIMENSION, _STEPS = 6, 5, 4


class _Rows:
    """Values and state that a rule updates, as arrays or tensors."""

    def __init__(self, rule: UpdateRule, library: str) -> None:
        random, width = np.random.default_rng(0), rule.state_width(_DIMENSION)
        assert type(width) is int and width >= 0, f"state_width returns {width!r}"
        rows = np.full((_ROWS, _DIMENSION + width), rule.initial_state, np.float32)
        rows[:, :_DIMENSION] = random.normal(size=(_ROWS, _DIMENSION))
        self.rows, self._view = rows, torch.from_numpy if library == "torch" else np.asarray

    def update(self, rule: UpdateRule, gradients: np.ndarray, step: int, chosen: slice, rate: float) -> None:
        rows, given, before = self._view(self.rows)[chosen], self._view(gradients)[chosen], gradients.copy()
        with np.errstate(all="ignore"):  # what isn't finite is found below
            rule.update(rows[:, :_DIMENSION], rows[:, _DIMENSION:], given, step, rate)
        assert np.array_equal(before, gradients), "update changes the gradients"


def check_row_optimizer(make: type[UpdateRule], tensors: bool = True, **keys: Any) -> None:
    """Checks that rows are updated in place, against the gradient, and each by itself, as arrays and as tensors.

    Args:
        make: the rule's class.
        tensors: also check tensors, which a GPU needs, and that they give what arrays give. A rule of the package is
            checked with tensors alone, as a kernel updates its arrays.
        keys: of the section `training.optimizer`.

    Raises:
        AssertionError: something is wrong.
    """
    config = OptimizerConfig(kind="own.py:Own", **keys)
    libraries = ["numpy"] * (make.code is None) + ["torch"] * tensors
    ends = [_check(make, config, library) for library in libraries]
    for each in ends[1:]:
        assert np.allclose(each, ends[0], rtol=1e-4, atol=1e-5), "arrays and tensors have other results"


def _check(make: type[UpdateRule], config: OptimizerConfig, library: str) -> np.ndarray:
    random = np.random.default_rng(1)
    gradients = [random.normal(size=(_ROWS, _DIMENSION)).astype(np.float32) for _ in range(_STEPS)]
    whole, parts, rule, other = _Rows(make(config), library), _Rows(make(config), library), make(config), make(config)
    for step, each in enumerate(gradients, 1):
        whole.update(rule, each, step, slice(None), 0.1)
        for chosen in (slice(2, _ROWS), slice(0, 2)):
            parts.update(other, each, step, chosen, 0.1)
    found = whole.rows
    assert found.dtype == np.float32 and np.isfinite(found).all(), "values or state are not finite"
    assert np.allclose(found, parts.rows, rtol=1e-6, atol=1e-7), "a row's update depends on other rows"
    first, moved = _Rows(make(config), library), _Rows(make(config), library)
    start = first.rows.copy()
    moved.update(make(config), gradients[0], 1, slice(None), 0.1)
    change = (moved.rows - start)[:, :_DIMENSION]
    assert change.any(), "values stay as they are: update must change them in place"
    assert (change * gradients[0]).sum() < 0, "values go with the gradient, not against it"
    first.update(make(config), gradients[0], 1, slice(None), 0.0)
    nothing = _Rows(make(config), library)
    for step in (1, 2):  # a loss may be flat
        nothing.update(make(config), np.zeros_like(gradients[0]), step, slice(None), 0.1)
    assert np.isfinite(nothing.rows).all(), "values or state are not finite after gradients of 0"
    still = np.array_equal(first.rows[:, :_DIMENSION], start[:, :_DIMENSION])
    assert still, "values change at a rate of 0: `rate` is the step size, which may decay"
    return found
