"""A shuffle of [0, n) that needs no array of n: each position is enciphered by itself.

A Feistel network on the fewest bits that hold n - 1 permutes [0, 2**bits); a result outside [0, n) is enciphered again
until it falls inside, which is a permutation of [0, n) ("cycle walking"; Black and Rogaway, "Ciphers with arbitrary
finite domains", CT-RSA 2002, sections 3 and 5) and takes fewer than two steps on average. The halves may differ by one
bit, as rounds change one half at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import bits_at, mix, stream_key, wrapping

MAX_SIZE = 1 << 40
ROUNDS = 6
"""Even. Luby and Rackoff ask for 4 of large halves; graphs may be tiny. Part of what the seed means."""


@dataclass(frozen=True)
class Permutation:
    """The permutation of [0, size) that belongs to (seed, name, epoch).

    Raises:
        ValueError: a size outside 1 to 2**40.
    """

    size: int
    seed: int
    epoch: int
    name: str = "shuffle"

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"size must be 1 to 2**40, not {self.size}")

    @wrapping
    def permute(self, positions: np.ndarray) -> np.ndarray:
        """The images of `positions`, both int64 [m].

        Raises:
            ValueError: positions that are not int64 [m] in [0, size).
        """
        if positions.dtype != np.int64 or positions.ndim != 1:
            raise ValueError(f"positions must be int64 [m], not {positions.dtype} {list(positions.shape)}")
        if positions.size and not 0 <= positions.min() <= positions.max() < self.size:
            raise ValueError(f"positions must lie in 0 to {self.size - 1}")
        out = np.array(positions)
        _permute(stream_key(self.seed, self.name, self.epoch), self.size, out)
        return out


@compiled
def round_keys(key):
    """The keys of the rounds of one permutation, uint64 [ROUNDS]."""
    keys = np.empty(ROUNDS, dtype=np.uint64)
    for i in range(ROUNDS):
        keys[i] = bits_at(key, i)
    return keys


@compiled
def bit_length(x):
    """The fewest bits that hold the int64 x >= 0; 0 for 0."""
    bits = 0
    while x >> bits:
        bits += 1
    return bits


@compiled
def permuted(position, size, bits, keys):
    """The image of one position in [0, size); bits = bit_length(size - 1), keys = round_keys(...)."""
    low_bits = np.uint64((bits + 1) // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(bits // 2)) - np.uint64(1)
    bound, x = np.uint64(size), np.uint64(position)
    while True:
        low, high = x & low_mask, x >> low_bits
        for i in range(0, ROUNDS, 2):
            high ^= mix(keys[i] ^ low) & high_mask
            low ^= mix(keys[i + 1] ^ high) & low_mask
        x = (high << low_bits) | low
        if x < bound:
            return np.int64(x)


@compiled
def unpermuted(image, size, bits, keys):
    """The position in [0, size) whose image `permuted` is `image`; arguments as there."""
    low_bits = np.uint64((bits + 1) // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(bits // 2)) - np.uint64(1)
    bound, x = np.uint64(size), np.uint64(image)
    while True:
        low, high = x & low_mask, x >> low_bits
        for i in range(ROUNDS - 2, -1, -2):
            low ^= mix(keys[i + 1] ^ high) & low_mask
            high ^= mix(keys[i] ^ low) & high_mask
        x = (high << low_bits) | low
        if x < bound:
            return np.int64(x)


@compiled
def _permute(key, size, positions):
    keys, bits = round_keys(key), bit_length(size - 1)
    for i in range(positions.size):
        positions[i] = permuted(positions[i], size, bits, keys)
