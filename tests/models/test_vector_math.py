"""The float32 functions against NumPy's in float64, over all of their range."""

import numpy as np
import pytest

from marius_oac.kernels.cpu import vector_math
from marius_oac.kernels.cpu.jit import float_compiled

NORMAL = 1.2e-38


def mapped(function):
    @float_compiled
    def kernel(x, y):
        for i in range(x.size):
            y[i] = function(x[i])

    def over(x):
        x = np.asarray(x, np.float32)
        y = np.empty_like(x)
        kernel(x, y)
        return y.astype(np.float64), x.astype(np.float64)

    return over


@pytest.mark.parametrize(
    ("name", "reference", "low", "high", "bound"),
    [
        ("exp", np.exp, -87.3, 88, 1.2e-7),
        ("log1p_unit", np.log1p, 0, 1, 2.5e-7),
        ("softplus", lambda x: np.logaddexp(0, x), -87, 1e4, 4e-7),
        ("sigmoid", lambda x: np.exp(-np.logaddexp(0, -x)), -87, 1e4, 4e-7),
    ],
)
def test_errors_stay_below_their_bounds(name, reference, low, high, bound):
    dense = np.linspace(low, min(high, 90), 2_000_001)
    small = np.geomspace(1e-30, 1, 200_001)
    x = np.concatenate((dense, small, [high]) if low >= 0 else (dense, small, -small, [0, high]))
    y, exact = mapped(getattr(vector_math, name))(np.clip(x, low, high))
    expected = reference(exact)
    error = abs(y - expected) / np.maximum(expected, NORMAL)
    assert error.max() < bound
    assert error.max() > bound / 4, "the bound says too little"


def test_ends_of_the_range():
    assert mapped(vector_math.exp)([-87.4, -1e30, -np.inf, 0])[0].tolist() == [0, 0, 0, 1]
    assert mapped(vector_math.softplus)([-np.inf, -1e30, np.inf])[0].tolist() == [0, 0, np.inf]
    assert mapped(vector_math.sigmoid)([-np.inf, -1e30, 1e30, np.inf, 0])[0].tolist() == [0, 0, 1, 1, 0.5]


def test_nan_stays_nan():
    for name in ("exp", "log1p_unit", "softplus", "sigmoid"):
        assert np.isnan(mapped(getattr(vector_math, name))([np.nan] * 20)[0]).all(), name
