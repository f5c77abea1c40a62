"""Numbers the different keys of a batch, in the order in which they first occur.

The keys are put into parts by the first bits of their hashes, so that the hash table of a part stays in the first-level
cache, and threads have parts of their own. What comes out depends neither on the parts nor on the threads.
"""

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.keys import hashes
from marius_oac.kernels.cpu.permutation import bit_length

MAX_KEYS = 1 << 30  # of one batch: a position and the bits of a hash that tell keys apart share a word
_KEYS_PER_PART = 1 << 10
_MAX_PART_BITS = 12
_BLOCK = 512  # keys whose hashes are made at once
_EMPTY = -1  # no word is: positions are below 2**bits - 1


def part_bits(count: int) -> int:
    """The binary logarithm of the number of parts for `count` keys."""
    return min(max(count // _KEYS_PER_PART, 1).bit_length() - 1, _MAX_PART_BITS)


@compiled
def divide(vocabularies, keys, bits, words, starts):
    """Fills in the keys in the order of their parts, those of a part as they come.

    Args:
        bits: there are 2**bits parts.
        words: int64 [n], filled in: the first bits of a key's hash, and its position in the others.
        starts: int64 [2**bits + 1], filled in: where each part begins in `words`.
    """
    size, parts = keys.size, 1 << bits
    position_mask = (1 << bit_length(size)) - 1
    following, hashed, total = np.zeros(parts, np.int64), np.empty(_BLOCK, np.int64), 0
    # Hashes are made twice, since that costs less than writing them to memory and reading them.
    for begin in range(0, size, _BLOCK):
        count = min(_BLOCK, size - begin)
        hashes(vocabularies[begin : begin + count], keys[begin : begin + count], hashed)
        for k in range(count):
            following[(hashed[k] >> (63 - bits)) >> 1 & (parts - 1)] += 1
    for part in range(parts):
        starts[part] = total
        total += following[part]
        following[part] = starts[part]
    starts[parts] = total
    for begin in range(0, size, _BLOCK):
        count = min(_BLOCK, size - begin)
        hashes(vocabularies[begin : begin + count], keys[begin : begin + count], hashed)
        for k in range(count):
            part = (hashed[k] >> (63 - bits)) >> 1 & (parts - 1)
            words[following[part]] = (hashed[k] & ~position_mask) | (begin + k)
            following[part] += 1


@compiled
def find_firsts(vocabularies, keys, checks, bits, words, starts, first, end, firsts):
    """For the keys of the parts [first, end) fills in where in the batch each comes first, `firsts` int32 [n].

    A key with two checks counts as two. Returns the first position whose key has another check before it, or -1.
    """
    collision, most = -1, 1
    for part in range(first, end):
        most = max(most, starts[part + 1] - starts[part])
    table = np.empty(2 << bit_length(most), np.int64)
    position_mask = (1 << bit_length(keys.size)) - 1
    for part in range(first, end):
        count = starts[part + 1] - starts[part]
        slot_bits = 1 + bit_length(count)
        mask, shift = (1 << slot_bits) - 1, 63 - bits - slot_bits
        table[: mask + 1] = _EMPTY
        for k in range(starts[part], starts[part + 1]):
            word = words[k]
            i, place = word & position_mask, (word >> shift) >> 1 & mask
            while True:
                other = table[place]
                if other == _EMPTY:
                    table[place] = word
                    firsts[i] = i
                    break
                if (other ^ word) & ~position_mask == 0:
                    j = other & position_mask
                    if keys[i] == keys[j] and vocabularies[i] == vocabularies[j]:
                        if checks.size == 0 or checks[i] == checks[j]:
                            firsts[i] = j
                            break
                        collision = i if collision < 0 else min(collision, i)
                place = (place + 1) & mask
    return collision


@compiled
def number(numbers, firsts):
    """Turns where each key comes first, int32 [n], into the keys' numbers, in place.

    Fills in where each number comes first, `firsts` int64 [n], ascending; returns how many numbers there are.
    """
    count = 0
    for i in range(numbers.size):
        first = numbers[i]
        if first == i:
            numbers[i] = count
            firsts[count] = i
            count += 1
        else:
            numbers[i] = numbers[first]  # the first has its number already
    return count
