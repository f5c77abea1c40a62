"""Compiled operations on a table of rows `[ timestamp word | value | optimizer state ]`.

The timestamp *word* is a shared cell (as the TID word of Silo, Tu et al., SOSP 2013, section 4.2); a timestamp is the
number in it. From the top: a zero, 40 bits of timestamp + 1, so that zeroed memory means timestamp -1; 22 bits of
version, one step per write; and the lock bit. The version is there because a write need not change the timestamp
(`add`, `apply`): without it a reader could take a row half from before and half from after such a write.

Guarantees:
- A row is read whole: the copy is accepted only if the word was unlocked before it and is the same after it. (This
  fails if exactly a multiple of 4,194,304 writes, ending in the same timestamp, happen while one row is copied.)
- A row is written under its lock bit by one writer at a time. Only `lock_rows` holds more than one bit, and it takes
  them in ascending order; so no writers wait for each other in a circle.
- Row ids are not checked here: callers have seen `first_misplaced` return -1.

The kernels' argument `rows` has the places of the rows in units of `Table.stride`: row ids where rows are contiguous,
offsets where they are in pages.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu import atomics
from marius_oac.kernels.cpu.bfloat16 import rounded_bits
from marius_oac.kernels.cpu.jit import compiled, inlined

WORD_BYTES = 8
MAX_TIMESTAMP = (1 << 40) - 2
NOT_HELD = -1  # no word is negative

_LOCKED = 1
_VERSION_STEP = 2
_TIMESTAMP_SHIFT = 23
_VERSION_MASK = (1 << _TIMESTAMP_SHIFT) - _VERSION_STEP
_SPINS_BEFORE_YIELD = 64
_LINE_BYTES = 64
# Distance of the prefetch. Measured with 400- and 800-byte rows: a gather is up to 2.7 times as fast as without, and
# little changes between half and twice this distance.
_PREFETCH_BYTES = 6400
_MAX_PREFETCH_ROWS = 64


class Table(NamedTuple):
    """The address of a table and the layout of its rows, in bytes. Its maker keeps the memory alive."""

    address: int
    stride: int
    row_bytes: int
    dimension: int
    # One element for bfloat16 values, none for float32: compiled code knows the length of a tuple, so that each of the
    # two has its own kernels, without branches for the other.
    bfloat16: tuple
    # The part of a row that is float32, in the table and in a buffer: value and state, or the state alone.
    float_bytes: int
    float_offset: int
    buffer_offset: int
    buffer_row_bytes: int

    def reading(self, elements: int) -> "Table":
        """That of a buffer with so many elements of each row: all, those of the value, or none, but timestamps."""
        if 4 * elements == self.buffer_row_bytes:
            return self
        wide = 0 if self.bfloat16 else 4 * elements
        row_bytes, buffer_row_bytes = WORD_BYTES + (wide or 2 * elements), 4 * elements
        return self._replace(
            row_bytes=row_bytes, dimension=elements, float_bytes=wide, buffer_row_bytes=buffer_row_bytes
        )


@inlined
def timestamp_of(word):
    """The timestamp in a row's word, -1 for a row that was never written."""
    return (word >> _TIMESTAMP_SHIFT) - 1


@inlined
def _next_word(word, timestamp):
    """The unlocked word after a write."""
    return ((timestamp + 1) << _TIMESTAMP_SHIFT) | ((word + _VERSION_STEP) & _VERSION_MASK)


@inlined
def _lock(at):
    """Takes the lock bit of the word at `at`; returns the word as it was."""
    spins = 0
    while True:
        word = atomics.load(at)
        if word & _LOCKED == 0 and atomics.compare_exchange(at, word, word | _LOCKED) == word:
            # The bit must be seen before the first byte of the new row is.
            atomics.release_fence()
            return word
        spins += 1
        if spins % _SPINS_BEFORE_YIELD == 0:
            atomics.yield_thread()


@inlined
def _prefetch_for_reading(at, row_bytes):
    for offset in range(0, row_bytes, _LINE_BYTES):
        atomics.prefetch(at + offset, 0)
    atomics.prefetch(at + row_bytes - 1, 0)


@inlined
def _prefetch_for_writing(at, row_bytes):
    for offset in range(0, row_bytes, _LINE_BYTES):
        atomics.prefetch(at + offset, 1)
    atomics.prefetch(at + row_bytes - 1, 1)


@compiled
def _rows_ahead(row_bytes):
    return min(_MAX_PREFETCH_ROWS, max(1, _PREFETCH_BYTES // row_bytes))


@compiled
def _widen(target, source, count):
    """Copies bfloat16 elements to float32 ones."""
    for j in range(count):
        atomics.set_uint32(target, j, np.uint32(atomics.get_uint16(source, j)) << np.uint32(16))


@compiled
def _narrow(target, source, count):
    """Copies float32 elements to bfloat16 ones."""
    for j in range(count):
        atomics.set_uint16(target, j, rounded_bits(atomics.get_uint32(source, j)))


@inlined
def _copy_out(table, at, target):
    """Copies the row at `at` to the float32 elements at `target`."""
    if len(table.bfloat16) > 0:
        _widen(target, at + WORD_BYTES, table.dimension)
    atomics.copy_bytes(target + table.buffer_offset, at + table.float_offset, table.float_bytes)


@inlined
def _copy_in(table, at, source):
    """Copies the float32 elements at `source` to the row at `at`; the caller holds its lock bit."""
    if len(table.bfloat16) > 0:
        _narrow(at + WORD_BYTES, source, table.dimension)
    atomics.copy_bytes(at + table.float_offset, source + table.buffer_offset, table.float_bytes)


@compiled
def first_misplaced(rows, num_rows):
    """Index of the first row id that is out of range or not above the one before it; -1 if there is none."""
    previous = -1
    for i in range(rows.size):
        row = rows[i]
        if row <= previous or row >= num_rows:
            return i
        previous = row
    return -1


@compiled
def read(table, rows, into, timestamps):
    """Copies rows to `into`, float32 [n, width] or as `Table.reading` says, and their timestamps, taking no lock."""
    base, row_bytes, target = table.address, table.row_bytes, atomics.address_of(into)
    buffer_row_bytes, stride = table.buffer_row_bytes, table.stride
    ahead = _rows_ahead(row_bytes)
    for i in range(rows.size):
        if i + ahead < rows.size:
            _prefetch_for_reading(base + rows[i + ahead] * stride, row_bytes)
        at = base + rows[i] * stride
        spins = 0
        while True:
            word = atomics.load(at)
            if word & _LOCKED == 0:
                _copy_out(table, at, target + i * buffer_row_bytes)
                # The copy must be complete before the word is looked at again.
                atomics.acquire_fence()
                if atomics.load(at) == word:
                    break
            spins += 1
            if spins % _SPINS_BEFORE_YIELD == 0:
                atomics.yield_thread()
        timestamps[i] = timestamp_of(word)


@compiled
def commit(table, rows, values, timestamp):
    """Overwrites the rows whose timestamp is smaller; returns how many were not."""
    base, row_bytes, source = table.address, table.row_bytes, atomics.address_of(values)
    buffer_row_bytes, stride = table.buffer_row_bytes, table.stride
    ahead = _rows_ahead(row_bytes)
    refused = 0
    for i in range(rows.size):
        if i + ahead < rows.size:
            _prefetch_for_writing(base + rows[i + ahead] * stride, row_bytes)
        at = base + rows[i] * stride
        word = _lock(at)
        if timestamp_of(word) < timestamp:
            _copy_in(table, at, source + i * buffer_row_bytes)
            word = _next_word(word, timestamp)
        else:
            refused += 1
        atomics.store(at, word)
    return refused


@compiled
def overwrite(table, rows, values, timestamp, seen):
    """Overwrites every row; returns how many had a timestamp other than `seen`."""
    base, row_bytes, source = table.address, table.row_bytes, atomics.address_of(values)
    buffer_row_bytes, stride = table.buffer_row_bytes, table.stride
    ahead = _rows_ahead(row_bytes)
    lost = 0
    for i in range(rows.size):
        if i + ahead < rows.size:
            _prefetch_for_writing(base + rows[i + ahead] * stride, row_bytes)
        at = base + rows[i] * stride
        word = _lock(at)
        if timestamp_of(word) != seen[i]:
            lost += 1
        _copy_in(table, at, source + i * buffer_row_bytes)
        atomics.store(at, _next_word(word, timestamp))
    return lost


@compiled
def add(table, rows, deltas, timestamp, sums):
    """Adds `deltas` to the rows; the timestamp of a row becomes the larger of the two.

    `sums`, float32 [width], is a work array, which the caller brings because an address keeps no array alive.
    """
    base, row_bytes, source = table.address, table.row_bytes, atomics.address_of(deltas)
    buffer_row_bytes, stride = table.buffer_row_bytes, table.stride
    ahead = _rows_ahead(row_bytes)
    sum_address = atomics.address_of(sums)
    for i in range(rows.size):
        if i + ahead < rows.size:
            _prefetch_for_writing(base + rows[i + ahead] * stride, row_bytes)
        at = base + rows[i] * stride
        delta = source + i * buffer_row_bytes
        word = _lock(at)
        _copy_out(table, at, sum_address)
        for j in range(sums.size):
            atomics.set_float32(sum_address, j, atomics.get_float32(sum_address, j) + atomics.get_float32(delta, j))
        _copy_in(table, at, sum_address)
        atomics.store(at, _next_word(word, max(timestamp, timestamp_of(word))))


@compiled
def restore(table, rows, values, timestamps):
    """Sets rows and their timestamps, whatever they were."""
    source = atomics.address_of(values)
    buffer_row_bytes = table.buffer_row_bytes
    for i in range(rows.size):
        at = table.address + rows[i] * table.stride
        word = _lock(at)
        _copy_in(table, at, source + i * buffer_row_bytes)
        atomics.store(at, _next_word(word, timestamps[i]))


@compiled
def lock_rows(table, rows, values, held):
    """Takes the lock bits in ascending order and copies the rows to `values`; `held` gets the words as they were."""
    base, row_bytes, target = table.address, table.row_bytes, atomics.address_of(values)
    buffer_row_bytes, stride = table.buffer_row_bytes, table.stride
    ahead = _rows_ahead(row_bytes)
    for i in range(rows.size):
        if i + ahead < rows.size:
            _prefetch_for_writing(base + rows[i + ahead] * stride, row_bytes)
        at = base + rows[i] * stride
        held[i] = _lock(at)
        _copy_out(table, at, target + i * buffer_row_bytes)


@compiled
def unlock_changed(table, rows, values, held, timestamp):
    """Writes the locked rows and unlocks them; the timestamp of a row becomes the larger of the two."""
    source = atomics.address_of(values)
    buffer_row_bytes = table.buffer_row_bytes
    for i in range(rows.size):
        at = table.address + rows[i] * table.stride
        _copy_in(table, at, source + i * buffer_row_bytes)
        atomics.store(at, _next_word(held[i], max(timestamp, timestamp_of(held[i]))))
        held[i] = NOT_HELD


@compiled
def unlock_unchanged(table, rows, held):
    """Unlocks, unchanged, the rows whose lock bit is still held."""
    for i in range(rows.size):
        if held[i] != NOT_HELD:
            atomics.store(table.address + rows[i] * table.stride, held[i])
            held[i] = NOT_HELD
