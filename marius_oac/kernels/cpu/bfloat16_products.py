"""The product of two float32 matrices, rounded to bfloat16: both are laid out anew, then multiplied."""

from marius_oac.kernels.cpu.atomics import address_of
from marius_oac.kernels.cpu.bfloat16_gemm import VECTOR, multiply_panels
from marius_oac.kernels.cpu.bfloat16_panels import pair_rows, round_row, turn_pairs
from marius_oac.kernels.cpu.jit import float_compiled

_BYTES = 4


@float_compiled
def multiply_rounded(sizes, left, right, into, lefts, rights, own):
    """Writes the product of [rows, inner] and [inner, columns]; each number of the two is rounded to nearest even.

    Args:
        sizes: rows, columns, inner; none is 0.
        left, right: the address of the first float, floats from a row in memory to the next, and whether it is in
            memory as the transpose: [inner, rows], [columns, inner].
        into: the address of the first float and floats from a row to the next.
        lefts, rights, own: uint32, flat and aligned to 64 bytes, with half of an even `inner` times rows, times
            columns rounded up to a multiple of `VECTOR`, and times `VECTOR`; work arrays.
    """
    rows, columns, inner = sizes
    (source, stride, turned), pairs, target = left, (inner + 1) // 2, address_of(lefts)
    if turned:
        pair_rows(source, stride, inner, rows, target, rows)
    else:
        for i in range(rows):
            round_row(source + _BYTES * i * stride, inner, target + _BYTES * i * pairs)
    left_row, left_pair = (1, rows) if turned else (pairs, 1)
    (source, stride, turned), width, target = right, (columns + VECTOR - 1) // VECTOR * VECTOR, address_of(rights)
    if turned:
        for first in range(0, columns, VECTOR):
            count = min(VECTOR, columns - first)
            for k in range(count):
                round_row(source + _BYTES * (first + k) * stride, inner, address_of(own) + _BYTES * k * pairs)
            turn_pairs(address_of(own), pairs, count, pairs, target + _BYTES * first, width)
    else:
        pair_rows(source, stride, inner, columns, target, width)
    multiply_panels(
        address_of(lefts), left_row, left_pair, target, width, into[0], into[1], rows, columns, pairs, 0
    )  # fmt: skip
