"""Values of rows on their way from a shard to a trainer: float32, or bfloat16 if the store has them so.

A stored bfloat16 value is sent as its two bytes and widened again by the trainer. Nothing is rounded on the way, so the
bits are those of a message of float32. Sums of rows have more bits than the rows, and are always float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_oac.kernels.cpu.bfloat16 import bfloat16_bits
from marius_oac.nodes.transport.contract import Buffer
from marius_oac.nodes.transport.messages import array
from marius_oac.storage.contract import RowLayout


@dataclass(frozen=True)
class ValueFormat:
    """How messages hold the values of a table's rows.

    Attributes:
        dimension: floats of a value.
        narrow: whether they are bfloat16.
    """

    dimension: int
    narrow: bool = False

    @classmethod
    def of(cls, layout: RowLayout, pools: bool = False) -> ValueFormat:
        """Returns that of rows with this layout; `pools`: some values are sums of rows."""
        return cls(layout.dimension, layout.value_dtype == "bfloat16" and not pools)

    @property
    def nbytes(self) -> int:
        """Bytes of one value in a message."""
        return self.dimension * (2 if self.narrow else 4)

    def sent(self, values: np.ndarray) -> np.ndarray:
        """Returns values, float32 [n, D] as a store reads them, as a message holds them."""
        return bfloat16_bits(values) if self.narrow else values

    def received(self, frame: Buffer, count: int) -> np.ndarray:
        """Returns the values, float32 [count, D], of a frame.

        Raises:
            Malformed: the frame has another size.
        """
        if not self.narrow:
            return array(frame, np.float32, count, self.dimension)
        return (array(frame, np.uint16, count, self.dimension).astype(np.uint32) << np.uint32(16)).view(np.float32)
