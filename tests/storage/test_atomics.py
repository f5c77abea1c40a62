"""The atomic operations, each alone and under contention."""

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from marius_oac.storage import atomics
from marius_oac.storage.compiled import compiled

STEPS = 2000 if numba.config.DISABLE_JIT else 200_000
THREADS = 4


@compiled
def _each(words):
    before = atomics.load(words, 1)
    atomics.store(words, 1, before + 5)
    failed = atomics.compare_exchange(words, 1, before, 99)
    done = atomics.compare_exchange(words, 1, before + 5, 7)
    added = atomics.fetch_add(words, 1, 3)
    atomics.acquire_fence()
    atomics.release_fence()
    atomics.yield_thread()
    atomics.prefetch(words, 1, 0)
    atomics.prefetch(words, 1000, 1)
    return before, failed, done, added


@compiled
def _count(words, steps):
    for _ in range(steps):
        atomics.fetch_add(words, 0, 1)
        while True:
            found = atomics.load(words, 1)
            if atomics.compare_exchange(words, 1, found, found + 1) == found:
                break


@compiled
def _publish(words, data, steps):
    for n in range(1, steps + 1):
        while atomics.load(words, 0) != 0:
            atomics.yield_thread()
        data[0] = n
        atomics.store(words, 0, n)


@compiled
def _receive(words, data, steps):
    """How many messages did not match the flag that announced them."""
    wrong = 0
    for _ in range(steps):
        flag = atomics.load(words, 0)
        while flag == 0:
            atomics.yield_thread()
            flag = atomics.load(words, 0)
        if data[0] != flag:
            wrong += 1
        atomics.store(words, 0, 0)
    return wrong


@compiled
def _copy(target, at, source, origin, count):
    atomics.copy_elements(target, at, source, origin, count)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_each_operation(dtype):
    words = np.array([1, 10, 3], dtype)
    assert _each(words) == (10, 15, 15, 7)
    assert words.tolist() == [1, 10, 3]


def test_no_increment_is_lost():
    words = np.zeros(2, np.int64)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: _count(words, STEPS // 10), range(THREADS)))
    assert words.tolist() == [THREADS * (STEPS // 10)] * 2


def test_what_was_written_before_a_store_is_seen_after_the_load():
    words, data, steps = np.zeros(1, np.int64), np.zeros(1, np.int64), STEPS // 20
    with ThreadPoolExecutor(2) as threads:
        sent = threads.submit(_publish, words, data, steps)
        assert threads.submit(_receive, words, data, steps).result() == 0
        sent.result()


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint16])
def test_copy(dtype):
    target = np.zeros(8, dtype)
    _copy(target, 2, np.arange(10, dtype=dtype), 5, 4)
    assert target.tolist() == [0, 0, 5, 6, 7, 8, 0, 0]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="compiled only: the types are known when compiling")
def test_only_words_are_atomic():
    with pytest.raises(numba.core.errors.TypingError):
        _count(np.zeros(2, np.float64), 1)
