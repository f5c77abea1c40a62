"""bfloat16 values, stored as the upper two bytes of a float32: rounded to nearest even, widened without loss.

A NaN stays a NaN (made quiet); values that are too large become infinite, as IEEE 754 rounds.
"""

import numpy as np

from marius_oac.kernels.cpu.jit import compiled, inlined


@inlined
def rounded_bits(bits):
    """Upper two bytes of the float32 with the bit pattern `bits` (uint32), rounded to nearest even."""
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40))
    tie_to_even = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + tie_to_even) >> np.uint32(16))


@compiled
def _round(bits, num_rows, stride, dimension):
    for i in range(num_rows):
        row = bits[i * stride : i * stride + dimension]
        for j in range(dimension):
            row[j] = np.uint32(rounded_bits(row[j])) << np.uint32(16)


def round_to_bfloat16(values: np.ndarray) -> None:
    """Rounds float32 [n, d] in place to what a table with bfloat16 values would hold.

    `values` may be the value columns of a staging buffer, `buffer[:, :dimension]`: only the elements of a row need
    to be contiguous. Raises ValueError for anything else.
    """
    if values.ndim != 2 or values.dtype != np.float32:
        raise ValueError(f"expected float32 values of shape [n, d], not {values.dtype} of shape {list(values.shape)}")
    if not values.flags.writeable:
        raise ValueError("values can't be rounded in place: the array is read-only")
    if values.size == 0:
        return
    num_rows, dimension = values.shape
    stride = values.strides[0] // 4 if num_rows > 1 else dimension
    if (dimension > 1 and values.strides[1] != 4) or stride < dimension:
        raise ValueError("values can't be rounded in place: the elements of a row must be contiguous")
    span = (num_rows - 1) * stride + dimension
    flat = np.lib.stride_tricks.as_strided(values, shape=(span,), strides=(4,))
    _round(flat.view(np.uint32), num_rows, stride, dimension)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """Stored form, uint16 [n, d], of float32 [n, d] values that are already rounded."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
