"""float32 matrices rounded to bfloat16, laid out in pairs as `bfloat16_gemm` multiplies them.

A pair is a word of 4 bytes: the first number in the lower half, the second in the upper one. Where a matrix has an odd
number of rows or columns, the last pair has a zero. Numbers are rounded to nearest even.
"""

import numpy as np

from marius_oac.kernels.cpu.atomics import get_uint32, set_uint16, set_uint32
from marius_oac.kernels.cpu.bfloat16 import rounded_bits
from marius_oac.kernels.cpu.jit import float_inlined

_BYTES = 4
_HALF = np.uint32(16)
_ZERO_HALF = np.uint16(0)


@float_inlined
def round_row(source, columns, into):
    """Writes the pairs of a row: (0, 1), (2, 3), and so on."""
    for j in range(columns):
        set_uint16(into, j, rounded_bits(get_uint32(source, j)))
    if columns & 1:
        set_uint16(into, columns, _ZERO_HALF)


@float_inlined
def pair_row(first, second, columns, into):
    """Writes the pairs of numbers of one column in two rows, by their addresses; a second row at address 0 is zeros."""
    if second != 0:
        for j in range(columns):
            lower, upper = rounded_bits(get_uint32(first, j)), rounded_bits(get_uint32(second, j))
            set_uint32(into, j, np.uint32(lower) | (np.uint32(upper) << _HALF))
    else:
        for j in range(columns):
            set_uint32(into, j, np.uint32(rounded_bits(get_uint32(first, j))))


@float_inlined
def pair_rows(source, stride, rows, columns, into, width):
    """`pair_row` of rows 0 and 1, 2 and 3, and so on: [(rows + 1) // 2, columns].

    `source` is the address of rows that are `stride` floats apart; those written are `width` pairs apart.
    """
    for row in range(0, rows, 2):
        first = source + _BYTES * row * stride
        second = first + _BYTES * stride if row + 1 < rows else 0
        pair_row(first, second, columns, into + _BYTES * (row // 2) * width)


@float_inlined
def turn_pairs(source, stride, rows, pairs, into, width):
    """Transposes words: [rows, pairs], rows `stride` words apart, to [pairs, rows], rows `width` words apart."""
    for p in range(pairs):
        for k in range(rows):
            set_uint32(into, p * width + k, get_uint32(source, k * stride + p))
