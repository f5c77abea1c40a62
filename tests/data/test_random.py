import math

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu.random import floats, integers, stream_key
from tests.data import naive_batches as naive

needs_jit = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="statistics take too many draws without the JIT")
seeds = st.integers(0, 2**70)
counters = st.lists(st.integers(0, 2**50), max_size=4)


def chi_square_is_plausible(counts: np.ndarray, expected: np.ndarray | float) -> bool:
    """Within five standard deviations of the statistic's mean, by Wilson and Hilferty's cube root, on both sides."""
    statistic, freedom = float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1
    spread = 2 / (9 * freedom)
    return abs((statistic / freedom) ** (1 / 3) - (1 - spread)) < 5 * math.sqrt(spread)


@settings(deadline=None, max_examples=60)
@given(seeds, st.text(max_size=8), counters, st.integers(1, 2**63 - 1), st.integers(0, 12))
def test_draws_are_those_of_the_naive_generator(seed, name, counters, bound, count):
    key = stream_key(seed, name, *counters)
    expected = naive.stream_key(seed, name, *counters)
    assert int(key) == expected
    drawn = integers(key, bound, count)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [naive.integer(expected, i, bound) for i in range(count)]
    assert floats(key, count).tolist() == [(naive.bits_at(expected, i) >> 11) / 2**53 for i in range(count)]


def test_the_numbers_are_those_of_splitmix64():
    # The first outputs of the published reference implementation for the state 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [naive.bits_at(1234567, i) for i in range(4)] == expected
    assert [int(x) for x in floats(np.uint64(1234567), 4) * 2**53] == [x >> 11 for x in expected]


@pytest.mark.parametrize("bound", [0, -1, 2**63])
def test_a_bound_out_of_range_is_refused(bound):
    with pytest.raises(ValueError, match="bound must be"):
        integers(stream_key(0, "a"), bound, 1)


def test_streams_differ_by_seed_name_and_each_counter():
    keys = [stream_key(0, "a"), stream_key(1, "a"), stream_key(0, "b"), stream_key(0, "a", 0), stream_key(0, "a", 1)]
    keys += [stream_key(0, "a", 0, 1), stream_key(0, "a", 1, 0), stream_key(0, "a", 0, 0)]
    keys += [stream_key(0, "a", epoch, batch) for epoch in range(2, 12) for batch in range(2, 12)]
    assert len({int(key) for key in keys}) == len(keys)
    draws = np.concatenate([integers(key, 2**62, 20) for key in keys])
    assert len(np.unique(draws)) == len(draws)


@needs_jit
@pytest.mark.parametrize("bound", [2, 3, 10, 1000, 2**16 + 1])
def test_integers_are_uniform(bound):
    draws = integers(stream_key(3, "uniform", bound), bound, 1_000_000)
    assert chi_square_is_plausible(np.bincount(draws, minlength=bound), len(draws) / bound)


@needs_jit
def test_integers_below_a_large_bound_reach_all_of_it():
    bound = 3 * 2**61  # of a modulo of 64 bits, the lower third would come half as often again
    draws = integers(stream_key(4, "large"), bound, 300_000)
    counts = np.bincount((draws // (bound // 300)).clip(max=299), minlength=300)
    assert chi_square_is_plausible(counts, 1000.0)


@needs_jit
def test_floats_are_uniform_in_the_unit_interval():
    draws = floats(stream_key(5, "floats"), 1_000_000)
    assert draws.min() >= 0 and draws.max() < 1
    assert chi_square_is_plausible(np.bincount((draws * 1000).astype(int), minlength=1000), 1000.0)


@needs_jit
@pytest.mark.parametrize("lag", [1, 2, 7])
def test_neighbours_in_a_stream_are_independent(lag):
    draws = integers(stream_key(6, "pairs"), 64, 1_000_000)
    assert chi_square_is_plausible(np.bincount(draws[lag:] * 64 + draws[:-lag], minlength=4096), len(draws) / 4096)


@needs_jit
def test_streams_of_neighbouring_batches_are_independent():
    draws = np.stack([integers(stream_key(7, "negatives", 0, batch), 16, 2000) for batch in range(300)])
    for pairs in (draws[1:] * 16 + draws[:-1], draws[:, 1:] * 16 + draws[:, :-1]):
        assert chi_square_is_plausible(np.bincount(pairs.ravel(), minlength=256), pairs.size / 256)
