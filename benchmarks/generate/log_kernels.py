"""The loops of the generated click logs; `log` defines the distribution that they draw from.

There are no tables: keys, their effects and the values of examples are hashes. The factors are triangle waves of an
angle, which need no sine and have the same bits on every machine.
"""

from __future__ import annotations

import math

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import GOLDEN, bits_at, mix

SIZE, POWER, INVERSE, REACH, LINEAR, PAIR = range(6)
"""Columns of the law, float64 [columns, 6]: see `rank_of`, and the weights of a column's effect and its pairs."""

KEYS, AGES = 0, 1
"""Columns of the streams of a vocabulary, uint64 [columns, 2]: which keys there are, and when each is replaced."""

_GENERATION = np.uint64(40)  # bits below a key's generation: those of its rank
_LOW_24, _LOW_16 = np.uint64((1 << 24) - 1), np.uint64((1 << 16) - 1)
_NORMAL = math.sqrt(3.0) / 65536.0


@compiled
def unit(bits):
    """A multiple of 2**-53 in [0, 1) of 64 bits."""
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@compiled
def rank_of(uniform, law):
    """The rank from 0 of a uniform, by the inverse of the distribution function of the bounded Zipf law."""
    reach = law[REACH]  # size + 1 to the `power`, minus 1; the logarithm of size + 1 where `power` is 0
    power = law[POWER]  # 1 - exponent
    x = math.exp(uniform * reach) if power == 0.0 else (1.0 + uniform * reach) ** law[INVERSE]
    return max(np.int64(0), np.int64(min(x, law[SIZE])) - np.int64(1))


@compiled
def key_of(rank, streams, age):
    """The 64 bits of the key that has a rank when `age` = day * (share of keys replaced a day)."""
    generation = np.uint64(np.floor(age + unit(bits_at(streams[AGES], rank))))
    # Distinct positions of one stream have distinct bits, so keys of a column never collide.
    return mix(streams[KEYS] + ((np.uint64(rank) | (generation << _GENERATION)) + np.uint64(1)) * GOLDEN)


@compiled
def wave(turns):
    """A triangle wave in place of a cosine: period 1, from -1 to 1, variance 1/3."""
    return 4.0 * abs(turns - np.floor(turns) - 0.5) - 1.0


@compiled
def add_factors(key, salt, turned, weight, total):
    """Adds weight times the key's four factors to `total`, float64 [4]; returns their squared length and the first.

    They are two points on closed curves, which move at a speed that depends on the key: `turned` is the angle, in
    turns, of the fastest.
    """
    bits = mix(key ^ salt)
    moved = (np.float64(bits & _LOW_16) * 2.0**-15 - 1.0) * turned
    first = np.float64(bits >> np.uint64(40)) * 2.0**-24 + moved
    second = np.float64((bits >> np.uint64(16)) & _LOW_24) * 2.0**-24 + moved
    a, b, c, d = wave(first), wave(first + 0.25), wave(second), wave(second + 0.25)
    total[0] += weight * a
    total[1] += weight * b
    total[2] += weight * c
    total[3] += weight * d
    return a * a + b * b + c * c + d * d, a


@compiled
def fill_keys(start, draws, salt, time, law, streams, keys, logits):
    """Draws the keys of examples start, start + 1 ..., uint64 [columns, n], and sets their part of the logits, [n].

    Args:
        time: age and turned, float64 [2]; see `key_of` and `add_factors`.
    """
    columns, n = keys.shape
    total = np.empty(4, dtype=np.float64)
    for i in range(n):
        total[:] = 0.0
        own = linear = 0.0
        place = (start + i) * columns
        for c in range(columns):
            key = key_of(rank_of(unit(bits_at(draws, place + c)), law[c]), streams[c], time[0])
            keys[c, i] = key
            weight = law[c, PAIR]
            length, effect = add_factors(key, salt, time[1], weight, total)
            own += weight * weight * length
            linear += law[c, LINEAR] * effect
        square = total[0] * total[0] + total[1] * total[1] + total[2] * total[2] + total[3] * total[3]
        logits[i] = linear + 0.5 * (square - own)


@compiled
def fill_numbers(start, draws, effects, product, numbers, logits):
    """Draws numbers, float32 [n, N], and adds their effects, float64 [N], and that of the product of the first two."""
    n, columns = numbers.shape
    for i in range(n):
        place = (start + i) * columns
        for j in range(columns):
            bits = bits_at(draws, place + j)
            # Four uniforms of 16 bits: close to a normal, and no logarithm.
            parts = (bits & _LOW_16) + ((bits >> np.uint64(16)) & _LOW_16)
            parts += ((bits >> np.uint64(32)) & _LOW_16) + (bits >> np.uint64(48))
            numbers[i, j] = (np.float64(parts) - 131070.0) * _NORMAL
            logits[i] += effects[j] * np.float64(numbers[i, j])
        if columns > 1:
            logits[i] += product * np.float64(numbers[i, 0]) * np.float64(numbers[i, 1])


@compiled
def lengths_of(start, draws, longest, offsets):
    """Sets offsets, int64 [n + 1], of lists of 0 to `longest` values."""
    offsets[0] = 0
    for i in range(offsets.size - 1):
        length = np.int64(unit(bits_at(draws, start + i)) * (longest + 1))
        offsets[i + 1] = offsets[i] + length


@compiled
def fill_list(start, draws, age, law, streams, longest, offsets, values):
    """Draws the values of lists, uint64 [offsets[n]], from a vocabulary; each example has its own random numbers."""
    for i in range(offsets.size - 1):
        for k in range(offsets[i + 1] - offsets[i]):
            rank = rank_of(unit(bits_at(draws, (start + i) * longest + k)), law)
            values[offsets[i] + k] = key_of(rank, streams, age)


@compiled
def add_history(targets, salt, turned, weight, decay, offsets, values, logits):
    """Adds the similarity of the target, uint64 [n], to the values seen before; each older one weighs `decay` times as
    much."""
    target, seen = np.empty(4, dtype=np.float64), np.empty(4, dtype=np.float64)
    for i in range(targets.size):
        target[:] = 0.0
        seen[:] = 0.0
        add_factors(targets[i], salt, turned, 1.0, target)
        recency = weight
        for k in range(offsets[i + 1] - 1, offsets[i] - 1, -1):
            add_factors(values[k], salt, turned, recency, seen)
            recency *= decay
        logits[i] += target[0] * seen[0] + target[1] * seen[1] + target[2] * seen[2] + target[3] * seen[3]


@compiled
def add_bag(salt, turned, weight, offsets, values, logits):
    """Adds the mean effect of a bag's values."""
    unused = np.zeros(4, dtype=np.float64)
    for i in range(logits.size):
        effects = 0.0
        for k in range(offsets[i], offsets[i + 1]):
            length, effect = add_factors(values[k], salt, turned, 0.0, unused)
            effects += effect
        if offsets[i + 1] > offsets[i]:
            logits[i] += weight * effects / (offsets[i + 1] - offsets[i])


@compiled
def draw_labels(start, draws, bias, logits, probabilities, labels):
    """Sets probabilities and labels, float32 [n], of logits without their bias."""
    for i in range(logits.size):
        probability = 1.0 / (1.0 + math.exp(-(logits[i] + bias)))
        probabilities[i] = probability
        labels[i] = unit(bits_at(draws, start + i)) < probability
