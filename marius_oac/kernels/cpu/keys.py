"""Compiled operations on an index of keys: from (vocabulary, key) to row.

The records, one per row, are two words, `[ key 8 bytes | check 4 | vocabulary 2 | state 2 ]`, and never move. The slots
are in shards, each an open-addressed table. A slot is 4 bytes: the number of a row + 1, or 0, and in the bits left
above it a part of the hash (the *tag*), so that few records of other keys are read. The directory has one word per
shard: the size class and the address of its slots.

A key is looked for in a cache line of slots, 16 of them, in turn from a place that its hash says; only if all are taken
in the next line. A look-up thus waits for two cache lines, of slots and of a record, and these waits are shared by many
keys (`_GROUP`): the lines of all are asked for before the first is read.

Guarantees, for any number of threads in `find` beside one in `number_new`, `place` or `move` of each shard:
- A record is complete before its row is in a slot, and a block of slots before it is in the directory. Loads acquire
  and stores release, so a thread that sees the slot or block sees its content.
- Slots are only filled, never changed, and `move` publishes a block only when it has every key of the old one: a key
  that was placed before `find` began is found, whichever block `find` reads.
- A row is returned only if its record has the same vocabulary and key.
- Blocks that were in the directory when `find` began must stay in memory until it has returned: `keys.shards` ensures
  that.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu import atomics
from marius_oac.kernels.cpu.atomics import LANES
from marius_oac.kernels.cpu.jit import compiled, inlined

RECORD = np.dtype([("key", "<i8"), ("check", "<u4"), ("vocabulary", "<u2"), ("state", "<u2")])
LIVE, FREE = 1, 2  # states of a row; 0: not handed out yet
NUM_ROWS, FREE_TAKEN = 0, 1  # places of `counters`

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
_GROUP = 64  # keys whose cache misses are waited for together; with 32 a look-up takes 1.4 times as long
_MOVED = 256  # slots whose records are waited for together when a shard grows
_AHEAD = 32  # distance of the prefetch where keys are taken one by one


class Index(NamedTuple):
    """The addresses of an index. Its maker keeps the memory alive."""

    records: int
    directory: int
    sizes: int  # slots of each size class, int64: a multiple of 16. A block begins at a multiple of 64 bytes.
    num_shards: int
    row_bits: int


@inlined
def _mix(state):
    """Output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), a permutation."""
    state = (state ^ (state >> _SHIFT_1)) * _MIX_1
    state = (state ^ (state >> _SHIFT_2)) * _MIX_2
    return state ^ (state >> _SHIFT_3)


@inlined
def hash_of(vocabulary, key):
    """The hash of a key, uint64."""
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
def _tag_mask(index):
    return _HALF_MASK ^ ((1 << index.row_bits) - 1)


@inlined
def _start_of(hashed, size):
    """The first slot to look at."""
    return (np.int64(hashed & _LOW_HALF) * size) >> 32


@inlined
def _size_of(index, word):
    return atomics.load(index.sizes + 8 * (word >> ADDRESS_BITS))


@inlined
def _row_of(index, slot):
    return (slot & ((1 << index.row_bits) - 1)) - 1


@inlined
def _address(slots, size, start, step):
    """The slot that a search from `start` looks at after `step` others."""
    line = (start & ~(LANES - 1)) + (step & ~(LANES - 1))
    return slots + 4 * ((line if line < size else line % size) + ((start + step) & (LANES - 1)))


@inlined
def _next_step(slots, size, start, step, mask, wanted):
    """The first step from `step` on whose slot is empty or has `wanted` in its bits `mask`."""
    lane = start & (LANES - 1)
    while True:
        line = (start - lane) + (step & ~(LANES - 1))
        if line >= size:
            line %= size
        in_line = step & (LANES - 1)
        hit = atomics.first_hit(slots + 4 * line, lane, in_line, mask, wanted)
        step += hit - in_line
        if hit < LANES:
            return step


@inlined
def _about(vocabulary, check):
    """The second word of a live record."""
    return _LIVE_BITS | (np.int64(vocabulary) << 32) | np.int64(check)


@inlined
def _resolve(index, word, hashed, step, key, about):
    """Searches the slots of `word` from `step` on: the row of a key, -1 if there is none, -2 if it has another check;
    and the address of the slot where the search ended."""
    slots, size = word & _ADDRESS_MASK, _size_of(index, word)
    start, mask, tag = _start_of(hashed, size), _tag_mask(index), _tag_of(index, hashed)
    while True:
        step = _next_step(slots, size, start, step, mask, tag)
        at = _address(slots, size, start, step)
        slot = atomics.load_half(at)
        # An empty slot may have been filled since: the key is being inserted, and to be found or not is both right.
        if slot == 0:
            return -1, at
        row = _row_of(index, slot)
        record = index.records + row * _RECORD_BYTES
        found = atomics.load(record + 8)
        if atomics.load(record) == key and (found ^ about) & _CHECK_MASK == 0:
            return (row if found == about else -2), at
        step += 1


@compiled
def hashes(vocabularies, keys, out):
    """Fills in the hash of each (vocabulary, key), `out` int64 [n]."""
    for i in range(keys.size):
        out[i] = np.int64(hash_of(vocabularies[i], keys[i]))


@compiled
def find(index, vocabularies, keys, checks, rows):
    """Fills in `rows`, -1 where a key is missing; returns how many are and the first key with another check, or -1."""
    missing, collision, mask = 0, -1, _tag_mask(index)
    hashed, words = np.empty(_GROUP, np.uint64), np.empty(_GROUP, np.int64)
    starts, found = np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64)
    for first in range(0, keys.size, _GROUP):
        count = min(_GROUP, keys.size - first)
        for j in range(count):  # a loop of its own, which is vectorised
            hashed[j] = hash_of(vocabularies[first + j], keys[first + j])
        for j in range(count):
            word = atomics.load(index.directory + 8 * _shard_of(index, hashed[j]))
            start = _start_of(hashed[j], _size_of(index, word))
            atomics.prefetch((word & _ADDRESS_MASK) + 4 * start, 0)
            words[j], starts[j] = word, start
        for j in range(count):
            lane, slots = starts[j] & (LANES - 1), words[j] & _ADDRESS_MASK
            line = slots + 4 * (starts[j] - lane)
            step = atomics.first_hit(line, lane, 0, mask, _tag_of(index, hashed[j]))
            # Of a full line without the tag any slot will do: its record is another key's, and `_resolve` goes on.
            slot = atomics.load_half(line + 4 * ((lane + step) & (LANES - 1)))
            atomics.prefetch(index.records + _row_of(index, slot) * _RECORD_BYTES, 0)
            found[j] = slot
        for j in range(count):
            i, row = first + j, _row_of(index, found[j])
            check = checks[i] if checks.size > 0 else np.uint32(0)
            about = _about(vocabularies[i], check)
            if row >= 0:
                at = index.records + row * _RECORD_BYTES
                if atomics.load(at) != keys[i] or atomics.load(at + 8) != about:
                    row, _ = _resolve(index, words[j], hashed[j], 0, keys[i], about)
            rows[i] = row
            if row == -1:
                missing += 1
            elif row == -2 and collision < 0:
                collision = i
    return missing, collision


@compiled
def number_new(index, vocabularies, keys, checks, rows, capacity, free, counters, hashed, counts):
    """Gives rows to new keys, all different, and writes their records; returns how many got one.

    Fewer than all if the table is full. They are found once they are placed.

    Args:
        rows: int64 [n], filled in: `free` ones, ascending, before those that were never used.
        hashed, counts: the keys' hashes, uint64 [n], and how many each shard has, int64 [shards], filled in.
    """
    for i in range(keys.size):
        if counters[FREE_TAKEN] < free.size:
            row = free[counters[FREE_TAKEN]]
            counters[FREE_TAKEN] += 1
        elif counters[NUM_ROWS] < capacity:
            row = counters[NUM_ROWS]
            counters[NUM_ROWS] += 1
        else:
            return i
        check = checks[i] if checks.size > 0 else np.uint32(0)
        at = index.records + row * _RECORD_BYTES
        atomics.store(at, keys[i])
        atomics.store(at + 8, _about(vocabularies[i], check))
        hashed[i], rows[i] = hash_of(vocabularies[i], keys[i]), row
        counts[_shard_of(index, hashed[i])] += 1
    return keys.size


@compiled
def read_hashes(index, rows, hashed, counts):
    """Fills in the hashes of rows' keys, uint64 [n], and adds to `counts`, int64 [shards], how many each shard has."""
    for i in range(rows.size):
        at = index.records + rows[i] * _RECORD_BYTES
        hashed[i] = hash_of((atomics.load(at + 8) >> 32) & 0xFFFF, atomics.load(at))
        counts[_shard_of(index, hashed[i])] += 1


@compiled
def place(index, rows, hashed, first, end):
    """Puts those rows into slots whose keys have a shard in [first, end), in their order.

    Their records are complete and their shards have room. Returns the first row whose key another one has, with
    whatever check, or -1; no row after it is placed.
    """
    mine, count = np.empty(rows.size, np.int64), 0
    for i in range(rows.size):
        mine[count] = i
        shard = _shard_of(index, hashed[i])
        count += first <= shard < end
    for k in range(count):
        if k + _AHEAD < count:
            ahead = hashed[mine[k + _AHEAD]]
            word = atomics.load(index.directory + 8 * _shard_of(index, ahead))
            atomics.prefetch((word & _ADDRESS_MASK) + 4 * _start_of(ahead, _size_of(index, word)), 1)
        row, of_key = rows[mine[k]], hashed[mine[k]]
        at = index.records + row * _RECORD_BYTES
        word = atomics.load(index.directory + 8 * _shard_of(index, of_key))
        found, slot = _resolve(index, word, of_key, 0, atomics.load(at), atomics.load(at + 8))
        if found != -1:
            return row
        atomics.store_half(slot, _tag_of(index, of_key) | (row + 1))
    return -1


@compiled
def move(index, shards, words):
    """Copies shards' rows, except dropped ones, to the empty slots of `words`, and puts these in the directory."""
    taken = np.empty(_MOVED, np.int64)
    for k in range(shards.size):
        old, slots, size = atomics.load(index.directory + 8 * shards[k]), words[k] & _ADDRESS_MASK, 0
        old_slots, old_size, size = old & _ADDRESS_MASK, _size_of(index, old), _size_of(index, words[k])
        for first in range(0, old_size, _MOVED):
            count = 0
            for at in range(first, min(first + _MOVED, old_size)):
                slot = atomics.load_half(old_slots + 4 * at)
                atomics.prefetch(index.records + _row_of(index, slot) * _RECORD_BYTES, 0)
                taken[count] = slot
                count += slot != 0
            for j in range(count):
                record = index.records + _row_of(index, taken[j]) * _RECORD_BYTES
                about = atomics.load(record + 8)
                if about >> 48 == LIVE:
                    start = _start_of(hash_of((about >> 32) & 0xFFFF, atomics.load(record)), size)
                    step = _next_step(slots, size, start, 0, 0, 1)  # no slot has a 1 in no bits: an empty one
                    atomics.store_half(_address(slots, size, start, step), taken[j])
        atomics.store(index.directory + 8 * shards[k], words[k])
