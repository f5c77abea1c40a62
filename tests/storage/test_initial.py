"""First values: a pure function of (seed, table, key), and of the distribution they claim."""

import hashlib
import math
from statistics import NormalDist

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu import normal
from marius_oac.kernels.cpu.normal import logarithms, quantiles
from marius_oac.storage.initial import RowInitial

COUNT = 2000 if numba.config.DISABLE_JIT else 20_000


def filled(initial, keys, dimension=8, state_width=2):
    rows = np.empty((len(keys), dimension + state_width), np.float32)
    initial.fill(np.asarray(keys, np.int64), rows, dimension)
    return rows


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.sampled_from(["uniform", "normal"]))
def test_a_row_depends_on_its_key_only(keys, kind):
    initial = RowInitial(kind, 0.3, 7, "entities", state_initial=0.1)
    rows = filled(initial, keys)
    for i, key in enumerate(keys):
        np.testing.assert_array_equal(rows[i], filled(initial, [key])[0])
    assert (rows[:, 8:] == np.float32(0.1)).all()


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_seed_table_key_and_column_each_make_other_values(kind):
    rows = [
        filled(RowInitial(kind, 1.0, seed, table), np.arange(50), state_width=0)
        for seed, table in [(0, "a"), (1, "a"), (0, "b"), (10, "a"), (1, "0 a")]
    ]
    values = np.concatenate(rows).ravel()
    # The uniform values have 24 bits: among 2,000 some 0.1 pairs are equal by chance.
    assert len(np.unique(values)) >= values.size - 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("uniform", "934f56b02242a09a23381b4c061da28a5c790f4d105ac1fc05a5a87204fe3881"),
        ("normal", "9739ada73c6716557a24f9cbeecb5dfacd3a90de470e0af638e5f942db9d93ec"),
    ],
)
def test_values_never_change(kind, expected):
    """These bytes are those of every run made so far, compiled or not, on any machine."""
    rows = filled(RowInitial(kind, 0.1, 42, "entities", state_initial=0.5), np.arange(0, 2_000_000_000, 4_000_001))
    assert hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest() == expected


def test_uniform_is_uniform():
    values = filled(RowInitial("uniform", 0.5, 0, "t"), np.arange(COUNT), state_width=0).astype(np.float64)
    assert np.abs(values).max() < 0.5
    counts = np.histogram(values, bins=20, range=(-0.5, 0.5))[0]
    expected = values.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 4 / math.sqrt(COUNT)


def test_normal_is_normal():
    values = filled(RowInitial("normal", 2.0, 0, "t"), np.arange(COUNT), state_width=0).astype(np.float64)
    edges = [-np.inf, *(2.0 * NormalDist().inv_cdf(i / 20) for i in range(1, 20)), np.inf]
    counts = np.histogram(values, bins=edges)[0]
    expected = values.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 4 / math.sqrt(COUNT)


@settings(deadline=None, max_examples=300)
@given(st.floats(2.0**-53, 1 - 2.0**-53))
def test_logarithm_and_quantile_against_the_standard_library(p):
    logarithms(np.array([p]), found := np.empty(1))
    assert found[0] == pytest.approx(math.log(p), rel=2e-15)
    quantiles(np.array([p]), found)
    assert found[0] == pytest.approx(NormalDist().inv_cdf(p), rel=2e-15, abs=1e-16)


@pytest.mark.parametrize("p", [2.0**-53, 1e-12, 1.3e-11, 1.5e-11, 0.0749, 0.0751, 0.5, 0.9249, 0.9251, 1 - 2.0**-53])
def test_quantile_where_its_pieces_meet(p):
    quantiles(np.array([p]), found := np.empty(1))
    assert found[0] == pytest.approx(NormalDist().inv_cdf(p), rel=2e-15)


def naive_logarithm(x):
    exponent = 0
    while x < normal._SQRT_HALF:
        x, exponent = 2.0 * x, exponent - 1
    s = (x - 1.0) / (x + 1.0)
    series = 0.0
    for power in range(21, 0, -2):
        series = series * (s * s) + 1.0 / power
    return exponent * normal._LN_2 + 2.0 * s * series


def naive_quantile(p):
    """One number at a time, in Python's floats."""

    def ratio(coefficients, x):
        top, bottom = 0.0, 0.0
        for above, below in zip(*coefficients, strict=True):
            top, bottom = top * x + above, bottom * x + below
        return top / bottom

    q = p - 0.5
    if abs(q) <= 0.425:
        return q * ratio(normal._CENTRE, 0.180625 - q * q)
    r = math.sqrt(-naive_logarithm(p if q < 0.0 else 1.0 - p))
    tail = ratio(normal._TAIL, r - 1.6) if r <= 5.0 else ratio(normal._FAR_TAIL, r - 5.0)
    return -tail if q < 0.0 else tail


EDGES = [
    2.0**-53,
    1e-300,
    1e-12,
    1.3e-11,
    0.075,
    np.nextafter(0.075, 0),
    0.5,
    0.925,
    np.nextafter(0.925, 1),
    1 - 2.0**-53,
]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(2.0**-53, 1 - 2.0**-53) | st.sampled_from(EDGES), max_size=40))
def test_many_quantiles_have_the_bits_of_one(p):
    out = np.empty(len(p))
    quantiles(np.array(p, np.float64), out)
    assert out.tobytes() == np.array([naive_quantile(each) for each in p], np.float64).tobytes()
    logarithms(np.array(p, np.float64), out)
    assert out.tobytes() == np.array([naive_logarithm(each) for each in p], np.float64).tobytes()


@pytest.mark.parametrize(
    "arguments",
    [("zeros", 0.1, 0, "t"), ("normal", -0.1, 0, "t"), ("normal", math.inf, 0, "t"), ("normal", 0.1, 0, "t", math.nan)],
)
def test_impossible_initials_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        RowInitial(*arguments)


def test_bad_arrays_are_refused():
    initial, good = RowInitial("uniform", 0.1, 0, "t"), np.zeros((2, 3), np.float32)
    for keys, rows, dimension in (
        (np.zeros(2, np.int32), good, 2),
        (np.zeros((1, 2), np.int64), good, 2),
        (np.zeros(3, np.int64), good, 2),
        (np.zeros(2, np.int64), good.astype(np.float64), 2),
        (np.zeros(2, np.int64), np.zeros((3, 2), np.float32).T, 2),
        (np.zeros(2, np.int64), good, 4),
        (np.zeros(2, np.int64), good, 0),
    ):
        with pytest.raises(ValueError):
            initial.fill(keys, rows, dimension)
