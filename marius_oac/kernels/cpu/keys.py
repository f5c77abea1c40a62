"""Compiled operations on an index of keys: from (vocabulary, key) to row.

The records, one per row, are two words, `[ key 8 bytes | check 4 | vocabulary 2 | state 2 ]`, and never move. The slots
are in shards, each an open-addressed table with linear probing. A slot is 4 bytes, two to a word: the number of a row
+ 1, or 0, and in the bits left above it a part of the hash (the *tag*), so that few records of other keys are read. The
directory has one word per shard: the size class and the address of its slots.

Guarantees, for any number of threads in `find` beside one in `insert` or `move`:
- A record is complete before its row is in a slot, and a block of slots before it is in the directory. Loads acquire
  and stores release, so a thread that sees the slot or block sees its content.
- Slots are only filled, never changed, and `move` publishes a block only when it has every key of the old one: a key
  that was inserted before `find` began is found, whichever block `find` reads.
- A row is returned only if its record has the same vocabulary and key.
- Blocks that were in the directory when `find` began must stay in memory until it has returned: `keys.index` ensures
  that.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu import atomics
from marius_oac.kernels.cpu.jit import compiled, inlined

RECORD = np.dtype([("key", "<i8"), ("check", "<u4"), ("vocabulary", "<u2"), ("state", "<u2")])
LIVE, FREE = 1, 2  # states of a row; 0: not handed out yet
NUM_ROWS, FREE_TAKEN = 0, 1  # places of `counters`
# What stopped `insert`, where it is not a shard that must grow.
DONE, FULL, COLLISION = -1, -2, -3

ADDRESS_BITS = 48
_ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
_RECORD_BYTES = RECORD.itemsize
_HALF_MASK = (1 << 32) - 1
_LIVE_BITS = LIVE << 48
_CHECK_MASK = ~_HALF_MASK
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _SHIFT_HALF = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_ONE, _LOW_HALF = np.uint64(1), np.uint64(_HALF_MASK)
_GROUP = 32  # keys whose cache misses are waited for together
_AHEAD = 16  # distance of the prefetch where keys are taken one by one


class Index(NamedTuple):
    """The addresses of an index. Its maker keeps the memory alive."""

    records: int
    directory: int
    sizes: int  # slots of each size class, int64
    num_shards: int
    row_bits: int


@inlined
def _mix(state):
    """Output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), a permutation."""
    state = (state ^ (state >> _SHIFT_1)) * _MIX_1
    state = (state ^ (state >> _SHIFT_2)) * _MIX_2
    return state ^ (state >> _SHIFT_3)


@inlined
def _hash(vocabulary, key):
    # By way of int64, because without the JIT a negative key may be one of Python's integers.
    return _mix(np.uint64(np.int64(key)) ^ _mix((np.uint64(vocabulary) + _ONE) * _GOLDEN))


@inlined
def _shard_of(index, hashed):
    return (np.int64(hashed >> _SHIFT_HALF) * index.num_shards) >> 32


@inlined
def _tag_of(index, hashed):
    """The tag where a slot has it."""
    return (np.int64(hashed >> _SHIFT_HALF) << index.row_bits) & _HALF_MASK


@inlined
def _start_of(hashed, size):
    """The first slot to look at."""
    return (np.int64(hashed & _LOW_HALF) * size) >> 32


@inlined
def _size_of(index, word):
    return atomics.load(index.sizes + 8 * (word >> ADDRESS_BITS))


@inlined
def _slot(slots, place):
    return (atomics.load(slots + 8 * (place >> 1)) >> (32 * (place & 1))) & _HALF_MASK


@inlined
def _fill_slot(slots, place, content):
    """For the only writer, and an empty slot."""
    at = slots + 8 * (place >> 1)
    atomics.store(at, atomics.load(at) | (content << (32 * (place & 1))))


@inlined
def _row_of(index, slot):
    return (slot & ((1 << index.row_bits) - 1)) - 1


@inlined
def _candidate(index, slots, size, place, tag):
    """The first slot from `place` on that has the tag or is empty."""
    tag_mask = _HALF_MASK ^ ((1 << index.row_bits) - 1)
    while True:
        slot = _slot(slots, place)
        if slot == 0 or slot & tag_mask == tag:
            return place
        place += 1
        if place == size:
            place = 0


@inlined
def _empty_from(slots, size, place):
    while _slot(slots, place) != 0:
        place += 1
        if place == size:
            place = 0
    return place


@inlined
def _about(vocabulary, check):
    """The second word of a live record."""
    return _LIVE_BITS | (np.int64(vocabulary) << 32) | np.int64(check)


@inlined
def _resolve(index, slots, size, place, tag, key, about):
    """The row of a key, -1 if there is none, and the place where the search ended; row -2: another check."""
    while True:
        place = _candidate(index, slots, size, place, tag)
        slot = _slot(slots, place)
        # An empty slot may have been filled since: the key is being inserted, and to be found or not is both right.
        if slot == 0:
            return -1, place
        row = _row_of(index, slot)
        at = index.records + row * _RECORD_BYTES
        found = atomics.load(at + 8)
        if atomics.load(at) == key and (found ^ about) & _CHECK_MASK == 0:
            return (row if found == about else -2), place
        place += 1
        if place == size:
            place = 0


@compiled
def hashes(vocabularies, keys, out):
    """Fills in the hash of each (vocabulary, key), `out` int64 [n]."""
    for i in range(keys.size):
        out[i] = np.int64(_hash(vocabularies[i], keys[i]))


@compiled
def find(index, vocabularies, keys, checks, rows):
    """Fills in `rows`, -1 where a key is missing; returns how many are and the first key with another check, or -1."""
    missing, collision = 0, -1
    work = np.empty((4, _GROUP), np.int64)
    for first in range(0, keys.size, _GROUP):
        count = min(_GROUP, keys.size - first)
        for j in range(count):
            hashed = _hash(vocabularies[first + j], keys[first + j])
            word = atomics.load(index.directory + 8 * _shard_of(index, hashed))
            size = _size_of(index, word)
            slots, place = word & _ADDRESS_MASK, _start_of(hashed, size)
            atomics.prefetch(slots + 4 * place, 0)
            work[0, j], work[1, j], work[2, j], work[3, j] = slots, size, place, _tag_of(index, hashed)
        for j in range(count):
            place = _candidate(index, work[0, j], work[1, j], work[2, j], work[3, j])
            atomics.prefetch(index.records + _row_of(index, _slot(work[0, j], place)) * _RECORD_BYTES, 0)
            work[2, j] = place
        for j in range(count):
            i = first + j
            check = checks[i] if checks.size > 0 else np.uint32(0)
            about = _about(vocabularies[i], check)
            row, _ = _resolve(index, work[0, j], work[1, j], work[2, j], work[3, j], keys[i], about)
            rows[i] = row
            if row == -1:
                missing += 1
            elif row == -2 and collision < 0:
                collision = i
    return missing, collision


@inlined
def _row_to_come(free, counters, capacity):
    """The row that the next new key gets, -1 if there is none."""
    if counters[FREE_TAKEN] < free.size:
        return free[counters[FREE_TAKEN]]
    return counters[NUM_ROWS] if counters[NUM_ROWS] < capacity else -1


@compiled
def insert(index, vocabularies, keys, checks, rows, first, capacity, free, counters, room):
    """Fills in the rows of keys from number `first` on, new ones where needed; returns the number of the first key left
    and the reason why it stopped.

    `free` are rows to be reused before new ones; `room`, int64 [shards], counts the keys that each shard can still
    take.
    """
    for i in range(first, keys.size):
        if i + _AHEAD < keys.size:
            hashed = _hash(vocabularies[i + _AHEAD], keys[i + _AHEAD])
            word = atomics.load(index.directory + 8 * _shard_of(index, hashed))
            atomics.prefetch((word & _ADDRESS_MASK) + 4 * _start_of(hashed, _size_of(index, word)), 1)
        hashed = _hash(vocabularies[i], keys[i])
        shard, tag = _shard_of(index, hashed), _tag_of(index, hashed)
        word = atomics.load(index.directory + 8 * shard)
        slots, size = word & _ADDRESS_MASK, _size_of(index, word)
        check = checks[i] if checks.size > 0 else np.uint32(0)
        about = _about(vocabularies[i], check)
        row, place = _resolve(index, slots, size, _start_of(hashed, size), tag, keys[i], about)
        if row == -2:
            return i, COLLISION
        if row == -1:
            row = _row_to_come(free, counters, capacity)
            if row < 0:
                return i, FULL
            if room[shard] == 0:
                return i, shard
            at = index.records + row * _RECORD_BYTES
            atomics.store(at, keys[i])
            atomics.store(at + 8, about)
            _fill_slot(slots, place, tag | (row + 1))
            room[shard] -= 1
            counters[FREE_TAKEN if counters[FREE_TAKEN] < free.size else NUM_ROWS] += 1
        rows[i] = row
    return keys.size, DONE


@compiled
def move(index, shard, word):
    """Copies a shard's rows, except dropped ones, to the empty slots of `word`, and puts these in the directory."""
    old = atomics.load(index.directory + 8 * shard)
    slots, size = word & _ADDRESS_MASK, _size_of(index, word)
    old_slots, old_size = old & _ADDRESS_MASK, _size_of(index, old)
    for place in range(old_size):
        if place + _AHEAD < old_size:
            ahead = _row_of(index, _slot(old_slots, place + _AHEAD))
            atomics.prefetch(index.records + ahead * _RECORD_BYTES, 0)
        slot = _slot(old_slots, place)
        if slot == 0:
            continue
        at = index.records + _row_of(index, slot) * _RECORD_BYTES
        about = atomics.load(at + 8)
        if about >> 48 == LIVE:
            hashed = _hash((about >> 32) & 0xFFFF, atomics.load(at))
            _fill_slot(slots, _empty_from(slots, size, _start_of(hashed, size)), slot)
    atomics.store(index.directory + 8 * shard, word)


@compiled
def count_keys(index, rows, counts):
    """Adds to `counts`, int64 [shards], how many of the rows' keys each shard has."""
    for i in range(rows.size):
        at = index.records + rows[i] * _RECORD_BYTES
        counts[_shard_of(index, _hash((atomics.load(at + 8) >> 32) & 0xFFFF, atomics.load(at)))] += 1


@compiled
def place_rows(index, rows):
    """Puts rows, whose records are complete and whose shards have room, into slots; returns the first row whose key
    another row has, or -1."""
    for i in range(rows.size):
        at = index.records + rows[i] * _RECORD_BYTES
        key, about = atomics.load(at), atomics.load(at + 8)
        hashed = _hash((about >> 32) & 0xFFFF, key)
        word, tag = atomics.load(index.directory + 8 * _shard_of(index, hashed)), _tag_of(index, hashed)
        slots, size = word & _ADDRESS_MASK, _size_of(index, word)
        row, place = _resolve(index, slots, size, _start_of(hashed, size), tag, key, about)
        if row != -1:
            return rows[i]
        _fill_slot(slots, place, tag | (rows[i] + 1))
    return -1
