"""The atomic operations, each alone and under contention."""

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from marius_oac.kernels.cpu import atomics
from marius_oac.kernels.cpu.jit import compiled

STEPS = 2000 if numba.config.DISABLE_JIT else 200_000
THREADS = 4


@compiled
def _each(words):
    word = atomics.address_of(words) + 8
    before = atomics.load(word)
    atomics.store(word, before + 5)
    failed = atomics.compare_exchange(word, before, 99)
    done = atomics.compare_exchange(word, before + 5, 7)
    atomics.acquire_fence()
    atomics.release_fence()
    atomics.pause()
    atomics.yield_thread()
    atomics.prefetch(word, 0)
    atomics.prefetch(word + 1_000_000, 1)
    return before, failed, done


@compiled
def _hits(words, lane, mask, wanted, out):
    """`first_hit` in the line at the first whole one, for every first step; and the first half, stored and loaded."""
    line = atomics.address_of(words)
    line += -line & 63
    for step in range(atomics.LANES):
        out[step] = atomics.first_hit(line, lane, step, mask, wanted)
    atomics.store_half(line + 4, atomics.load_half(line) + 1)


@compiled
def _count(words, steps):
    word = atomics.address_of(words)
    for _ in range(steps):
        while True:
            found = atomics.load(word)
            if atomics.compare_exchange(word, found, found + 1) == found:
                break


@compiled
def _add(words, seen, steps):
    """Adds one so many times, and counts in `seen` how often each number was there before."""
    for _ in range(steps):
        seen[atomics.fetch_add(atomics.address_of(words), 1)] += 1


@compiled
def _publish(words, data, steps):
    flag = atomics.address_of(words)
    for n in range(1, steps + 1):
        while atomics.load(flag) != 0:
            atomics.yield_thread()
        data[0] = n
        atomics.store(flag, n)


@compiled
def _receive(words, data, steps):
    """How many messages did not match the flag that announced them."""
    flag = atomics.address_of(words)
    wrong = 0
    for _ in range(steps):
        number = atomics.load(flag)
        while number == 0:
            atomics.yield_thread()
            number = atomics.load(flag)
        if data[0] != number:
            wrong += 1
        atomics.store(flag, 0)
    return wrong


@compiled
def _copy(target, source, count):
    atomics.copy_bytes(atomics.address_of(target) + 8, atomics.address_of(source) + 4, count)


@compiled
def _elements(halves, integers, floats):
    """Every element becomes the one before it plus one."""
    half, integer, number = atomics.address_of(halves), atomics.address_of(integers), atomics.address_of(floats)
    for i in range(1, len(halves)):
        atomics.set_uint16(half, i, np.uint16(atomics.get_uint16(half, i - 1) + np.uint16(1)))
        atomics.set_uint32(integer, i, np.uint32(atomics.get_uint32(integer, i - 1) + np.uint32(1)))
        atomics.set_float32(number, i, atomics.get_float32(number, i - 1) + np.float32(1))


def test_each_operation():
    words = np.array([1, 10, 3])
    assert _each(words) == (10, 15, 15)
    assert words.tolist() == [1, 7, 3]


def test_no_increment_is_lost():
    words = np.zeros(1, np.int64)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: _count(words, STEPS // 10), range(THREADS)))
    assert words.tolist() == [THREADS * (STEPS // 10)]


def test_no_number_is_handed_out_twice():
    words, count = np.zeros(1, np.int64), STEPS // 10
    seen = np.zeros((THREADS, THREADS * count), np.int64)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda own: _add(words, own, count), seen))
    assert words[0] == THREADS * count and (seen.sum(0) == 1).all()


def test_what_was_written_before_a_store_is_seen_after_the_load():
    words, data, steps = np.zeros(1, np.int64), np.zeros(1, np.int64), STEPS // 20
    with ThreadPoolExecutor(2) as threads:
        sent = threads.submit(_publish, words, data, steps)
        assert threads.submit(_receive, words, data, steps).result() == 0
        sent.result()


def test_copy_takes_bytes_at_any_address():
    target = np.zeros(5, np.int32)
    _copy(target, np.arange(1, 6, dtype=np.int32), 8)
    assert target.tolist() == [0, 0, 2, 3, 0]


def test_elements_by_address():
    halves, integers, floats = (np.full(4, 7, dtype) for dtype in (np.uint16, np.uint32, np.float32))
    _elements(halves, integers, floats)
    for array in (halves, integers, floats):
        assert array.tolist() == [7, 8, 9, 10]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="compiled only: the layout is known when compiling")
def test_an_address_needs_a_contiguous_array():
    with pytest.raises(numba.core.errors.TypingError):
        _count(np.zeros(4, np.int64)[::2], 1)


@pytest.mark.parametrize("lane", [0, 5, 15])
@pytest.mark.parametrize(("mask", "wanted"), [(0xF0000000, 0x80000000), (0, 1)], ids=["a tag", "an empty half"])
def test_the_first_hit_of_a_line_is_found_in_turn(lane, mask, wanted):
    rng, memory, out = np.random.default_rng(lane), np.zeros(16, np.int64), np.empty(atomics.LANES, np.int64)
    first = -memory.ctypes.data % 64 // 8
    halves = memory[first : first + 8].view(np.uint32)
    for share in (0.0, 0.1, 0.6):
        halves[:] = rng.integers(1, 1 << 28, 16)
        halves[rng.random(16) < share] |= 0x80000000
        halves[rng.random(16) < share] = 0
        hit = [(each & mask == wanted) or each == 0 for each in np.roll(halves, -lane).tolist()]
        before = int(halves[0])
        _hits(memory, lane, mask, wanted, out)
        assert out.tolist() == [next((at for at in range(step, 16) if hit[at]), 16) for step in range(16)]
        assert halves[1] == (before + 1) % (1 << 32)
