"""Arrays of a batch in one block of bytes, so that one copy moves all of them.

The values of all tables come first, then their timestamps, then row ids, then the arrays of the batch's data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from marius_oac.types import arrays_of, map_arrays

_ALIGNMENT = 256
"""Bytes: arrays begin where torch's own would, on which bits of products may depend."""


class Place(NamedTuple):
    """Of an array in a block: its first byte, shape and type."""

    begin: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.begin + math.prod(self.shape) * self.dtype.itemsize

    def of(self, block: torch.Tensor) -> torch.Tensor:
        """The array, a view of a block uint8 [bytes]."""
        return block[self.begin : self.end].view(self.dtype).view(self.shape)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def rows_bytes(counts: Sequence[int], widths: Sequence[int]) -> int:
    """Bytes of so many rows of each table in a block: values, timestamps and ids."""
    return sum(
        _aligned(4 * count * width) + 2 * _aligned(8 * count) for count, width in zip(counts, widths, strict=True)
    )


def data_bytes(data: Any) -> int:
    """Bytes of the arrays of a batch's data in a block."""
    return sum(_aligned(array.nbytes) for array in arrays_of(data))


class Packing:
    """The places of a batch's arrays in a block.

    Attributes:
        values, timestamps, rows: of each table, float32 [n, width], int64 [n], int64 [n].
        source: the data, with NumPy's arrays.
        num_bytes: of the block that is used.

    Args:
        counts, widths: rows of each table, and floats of a row.
        data: of the batch, with NumPy's arrays.
    """

    def __init__(self, counts: Sequence[int], widths: Sequence[int], data: Any) -> None:
        self.num_bytes = 0
        self.values = [self._add((count, width), torch.float32) for count, width in zip(counts, widths, strict=True)]
        self.timestamps, self.rows = ([self._add((count,), torch.int64) for count in counts] for _ in range(2))
        self.source = data
        self._arrays = [(array, self._add(array.shape, _dtype(array))) for array in arrays_of(data)]

    def _add(self, shape: tuple[int, ...], dtype: torch.dtype) -> Place:
        place = Place(self.num_bytes, tuple(shape), dtype)
        self.num_bytes = _aligned(place.end)
        return place

    def put(self, block: torch.Tensor) -> None:
        """Copies the arrays of the data into a block of the host's."""
        for array, place in self._arrays:
            np.copyto(place.of(block).numpy(), array)

    def data(self, block: torch.Tensor) -> Any:
        """The data, its arrays views of a block."""
        places: Iterator[Place] = iter(place for _, place in self._arrays)
        return map_arrays(self.source, lambda array: next(places).of(block))


def _dtype(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
