"""Sums of floats have the bits that are written here: with any Python, LLVM, processor, and without the JIT."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.errors import TypingError

from marius_oac.kernels.cpu import sums
from marius_oac.kernels.cpu.jit import float_compiled
from tests.kernels import written
from tests.storage.conformance import JIT

WRITTEN = {
    "softmax": "860416e3cf470c6a",
    "logistic": "7dec438d6f8d5216",
    "margin": "bd633af043978d96",
    "self-adversarial": "d83e7e27b8a7d12a",
    "inner product": "6cc93ff80ffd6246",
    "L1": "0bd29328ba8d1265",
    "L2": "325b1f64305e7d8b",
    "moduli": "043e5c2687a58a20",
    "squares": "111a172bc3a254c2",
    "cubes": "ffc1cf0c1a8f8f69",
    "cubed moduli": "8b7b1450ec63f231",
    "rows": "d5bf413473fa8400",
    "edges": "ac200197874cec83",
}
TARGETS = {
    "AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+sse4.2"},
    "no vectors": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
    "no JIT": {"NUMBA_DISABLE_JIT": "1"},
}


def test_every_kernel_with_a_sum_has_the_written_bits():
    assert written.digests() == WRITTEN


@pytest.mark.slow  # each compiles them anew
@pytest.mark.skipif(not JIT, reason="nothing is compiled")
@pytest.mark.parametrize("target", TARGETS)
def test_the_bits_are_those_of_every_processor(tmp_path, target):
    environment = os.environ | TARGETS[target] | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.written"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == WRITTEN


@float_compiled
def all_sums(x, y, into):
    """Each function of `sums`."""
    into[0], into[1], into[2] = sums.total(x), sums.dot(x, y), sums.absolute_differences(x, y)
    into[3], into[4] = sums.squared_differences(x, y), sums.moduli_of_differences(x, y)
    into[5], into[6] = sums.cubes(x), sums.cubed_moduli(x)


def moduli(x):
    real, imaginary = np.split(x[: x.size // 2 * 2].astype(np.float64), 2)
    return np.hypot(real, imaginary)


@given(st.integers(0, 70), st.integers(0, 9))
def test_sums_are_near_the_exact_ones(half, seed):
    x, y = written.numbers(2 * half, stream=seed), written.numbers(2 * half, stream=seed + 77)
    found, a, b = np.zeros(7, np.float32), x.astype(np.float64), y.astype(np.float64)
    all_sums(x, y, found)
    terms = [a, a * b, abs(a - b), (a - b) ** 2, moduli(a - b), abs(a) ** 3, moduli(a) ** 3]
    for total, exact in zip(found, terms, strict=True):
        assert abs(total - math.fsum(exact)) <= 2e-6 * math.fsum(abs(exact)) + 1e-12


@np.errstate(over="ignore")
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 100])
def test_the_order_is_the_lanes_then_the_tree(count):
    x = written.numbers(count) * np.float32(1e3) ** written.numbers(count, stream=9)
    lanes = [np.float32(0)] * 32
    for k in range(count):
        lanes[k % 32] += x[k]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[k] + lanes[half + k] for k in range(half)]
    found = np.zeros(7, np.float32)
    all_sums(x, x, found)
    assert found[0].tobytes() == lanes[0].tobytes()


@np.errstate(invalid="ignore")
def test_what_is_not_finite_is_seen():
    found = np.zeros(7, np.float32)
    for value in (np.nan, np.inf):
        for at in (0, 31, 32, 69):
            x = np.zeros(70, np.float32)
            x[at] = value
            all_sums(x, np.zeros_like(x), found)
            assert not np.isfinite(found).any()


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_floats_that_are_not_side_by_side_are_refused():
    with pytest.raises(TypingError, match=r"float32 \[n\], contiguous"):
        all_sums(np.zeros(8, np.float32)[::2], np.zeros(4, np.float32), np.zeros(7, np.float32))
