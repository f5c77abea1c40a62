"""The different keys of a batch against a dictionary, for any number of parts and threads."""

from contextlib import closing

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.errors import InputError
from marius_oac.kernels.cpu import distinct as kernels
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.storage.keys import distinct
from marius_oac.storage.keys.distinct import DistinctKeys, number_distinct

JIT = not numba.config.DISABLE_JIT


def naive(keys):
    """Numbers, first positions, and the first position whose key comes before it with another check, or -1."""
    numbers, firsts, checks, twice = {}, [], {}, -1
    for i, key in enumerate(keys):
        if key not in numbers:
            numbers[key] = len(numbers)
            firsts.append(i)
        if checks.setdefault(key[:2], key[2]) != key[2] and twice < 0:
            twice = i
    return [numbers[key] for key in keys], firsts, twice


def arrays(keys):
    columns = zip(*keys, strict=True) if keys else ((), (), ())
    return [np.array(column, dtype) for column, dtype in zip(columns, (np.uint16, np.int64, np.uint32), strict=True)]


@pytest.fixture(params=[(1, 1), (1 << 10, 1), (4, 3)], ids=["many parts", "one part", "three threads"], scope="module")
def pool(request):
    keys_per_part, threads = request.param
    with pytest.MonkeyPatch.context() as patch, closing(ThreadPool(threads)) as pool:
        patch.setattr(kernels, "_KEYS_PER_PART", keys_per_part)
        patch.setattr(distinct, "_LEAST_PARTS", 1)
        patch.setattr(distinct, "_LEAST_KEYS", 1)
        yield pool


some_keys = st.tuples(
    st.sampled_from([0, 1, 65535]), st.sampled_from([-(2**63), -1, 2**63 - 1]) | st.integers(-9, 9), st.integers(0, 1)
)


@settings(deadline=None, max_examples=60 if JIT else 30)
@given(st.lists(some_keys, max_size=80))
@example([(0, 0, 0), (0, 0, 1), (0, 0, 0)])
def test_keys_are_numbered_as_they_come(pool, keys):
    vocabularies, numbers, checks = arrays(keys)
    found, firsts, twice = number_distinct(vocabularies, numbers, checks, pool)
    assert found.dtype == np.int32 and firsts.dtype == np.int64
    assert (found.tolist(), firsts.tolist(), twice) == naive(keys)
    without = [(*key[:2], 0) for key in keys]
    found, firsts, twice = number_distinct(vocabularies, numbers, checks[:0], pool)
    assert (found.tolist(), firsts.tolist(), twice) == naive(without)


@pytest.mark.skipif(not JIT, reason="too many keys without the JIT")
@pytest.mark.parametrize("different", [1, 900, 1 << 40])
def test_many_keys(different):
    rng = np.random.default_rng(different)
    keys, zeros = rng.integers(0, different, 30_000) << 20, np.zeros(30_000, np.uint16)
    with closing(ThreadPool(3)) as pool:
        numbers, firsts, twice = number_distinct(zeros, keys, np.zeros(0, np.uint32), pool)
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    assert twice == -1 and np.array_equal(firsts, np.sort(first))
    assert np.array_equal(firsts[numbers], first[back])


def test_what_a_batch_asks_for():
    given = DistinctKeys.of("t", *arrays([(1, 5, 7), (0, 5, 8), (1, 5, 7), (1, 6, 9), (1, 5, 7)]))
    assert given.numbers.tolist() == [0, 1, 0, 2, 0] and given.counts.tolist() == [3, 1, 1]
    assert [each.tolist() for each in given.asked] == [[1, 0, 1], [5, 5, 6], [7, 8, 9]]
    with pytest.raises(InputError, match=r"table t: .*vocabulary 1 .*fingerprint -5 \(fffffffffffffffb\)"):
        DistinctKeys.of("t", *arrays([(0, -5, 8), (1, -5, 7), (1, -5, 8)]))


def test_a_batch_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_KEYS", 2)
    with pytest.raises(ValueError, match="a batch of 2 keys is too large"):
        number_distinct(*arrays([(0, 1, 0), (0, 2, 0)]))
