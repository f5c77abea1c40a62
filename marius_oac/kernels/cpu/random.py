"""Counter-based random numbers: number `position` of a stream is a hash of (seed, name, counters, position).

Nothing is carried from one draw to the next, so any thread draws any part of any stream in any order. A stream's
numbers are splitmix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure
17) started at its key. A key begins as the first 8 bytes of SHA-256 of seed and name, and `fold` mixes in one counter
after the other: the epoch, the batch. All of this is part of what a seed means.

Kernels work on uint64 throughout: with an int64 beside them Numba and NumPy would both go through float64.
"""

from __future__ import annotations

import hashlib

import numpy as np

from marius_oac.kernels.cpu.jit import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)

wrapping = np.errstate(over="ignore")
"""For callers of these kernels: wrapping around is what the hash is made of; NumPy warns of it when the JIT is off."""


@wrapping
def stream_key(seed: int, name: str, *counters: int) -> np.uint64:
    """The key of the stream `name` of a seed, folded with the counters (each at least 0) in turn."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    key = np.uint64(int.from_bytes(digest[:8], "little"))
    for counter in counters:
        key = np.uint64(fold(key, counter))
    return key


@wrapping
def integers(key: np.uint64, bound: int, count: int) -> np.ndarray:
    """The stream's numbers 0 to count - 1 as integers uniform in [0, bound), int64 [count]; 1 <= bound < 2**63."""
    if not 1 <= bound < 1 << 63:
        raise ValueError(f"bound must be 1 to 2**63 - 1, not {bound}")
    out = np.empty(count, dtype=np.int64)
    _integers(np.uint64(key), bound, out)
    return out


@wrapping
def floats(key: np.uint64, count: int) -> np.ndarray:
    """The stream's numbers 0 to count - 1 as multiples of 2**-53 uniform in [0, 1), float64 [count]."""
    out = np.empty(count, dtype=np.float64)
    _floats(np.uint64(key), out)
    return out


@compiled
def mix(state):
    """Output function of splitmix64, a bijection of uint64."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@compiled
def bits_at(key, position):
    """The 64 bits of the stream's number `position` (an integer >= 0)."""
    return mix(key + (np.uint64(position) + np.uint64(1)) * GOLDEN)


@compiled
def fold(key, counter):
    """The key of substream `counter` (an integer >= 0)."""
    # The complement keeps substreams apart from the numbers of the stream itself.
    return mix(~bits_at(key, counter))


@compiled
def below(bits, bound):
    """Uniform int64 in [0, bound): the high word of bits * bound, off by at most bound / 2**64 in probability."""
    n = np.uint64(bound)
    high, low = bits >> _HALF, bits & _LOW
    n_high, n_low = n >> _HALF, n & _LOW
    middle = high * n_low + ((low * n_low) >> _HALF)
    carry = low * n_high + (middle & _LOW)
    return np.int64(high * n_high + (middle >> _HALF) + (carry >> _HALF))


@compiled
def _integers(key, bound, out):
    for i in range(out.size):
        out[i] = below(bits_at(key, i), bound)


@compiled
def _floats(key, out):
    for i in range(out.size):
        out[i] = np.float64(bits_at(key, i) >> np.uint64(11)) * 2.0**-53
