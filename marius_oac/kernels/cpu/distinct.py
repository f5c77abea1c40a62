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
def count_parts(vocabularies, keys, bits, counts):
    """Counts the keys of each part, int64 [2**bits]: of 0s."""
    hashed, parts = np.empty(_BLOCK, np.int64), 1 << bits
    # Hashes are made twice, here and in `divide`: that costs less than writing them to memory and reading them.
    for begin in range(0, keys.size, _BLOCK):
        count = min(_BLOCK, keys.size - begin)
        hashes(vocabularies[begin : begin + count], keys[begin : begin + count], hashed)
        for k in range(count):
            counts[(hashed[k] >> (63 - bits)) >> 1 & (parts - 1)] += 1


@compiled
def divide(vocabularies, keys, bits, first, end, following, words):
    """Puts the keys from position `first` to `end` into their parts, as they come.

    Args:
        bits: there are 2**bits parts.
        following: int64 [2**bits], where in `words` the next key of each part comes.
        words: int64 [n], filled in: the first bits of a key's hash, and its position in the others.
    """
    hashed, parts = np.empty(_BLOCK, np.int64), 1 << bits
    position_mask = (1 << bit_length(keys.size)) - 1
    for begin in range(first, end, _BLOCK):
        count = min(_BLOCK, end - begin)
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


@compiled
def number_alone(vocabularies, keys, checks, bits, words, numbers):
    """All of that by one thread: fills in the number of each key, int32 [n], and where each number comes first, in
    `words`. Returns how many numbers there are, and what `find_firsts` does."""
    counts, starts = np.zeros(1 << bits, np.int64), np.zeros((1 << bits) + 1, np.int64)
    count_parts(vocabularies, keys, bits, counts)
    for part in range(counts.size):
        starts[part + 1] = starts[part] + counts[part]
    begin = np.int64(0)  # no literal, for which both would be compiled once more
    divide(vocabularies, keys, bits, begin, keys.size, starts[:-1].copy(), words)
    collision = find_firsts(vocabularies, keys, checks, bits, words, starts, begin, counts.size, numbers)
    return number(numbers, words), collision


@compiled
def pick(firsts, first, end, vocabularies, keys, checks, own_vocabularies, own_keys, own_checks):
    """Copies what is at the positions `firsts[first:end]`, each array to the same places of its own."""
    for i in range(first, end):
        at = firsts[i]
        own_vocabularies[i], own_keys[i], own_checks[i] = vocabularies[at], keys[at], checks[at]
