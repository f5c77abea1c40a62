"""A trainer's virtual parts of one global batch, pulled and pushed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.types import BatchData


@dataclass(frozen=True, eq=False)
class OnePart:
    """A part: its number, the record of its examples, and for each table the places of its rows among those that are
    pulled, int64 [n]."""

    number: int
    data: BatchData
    index: Sequence[np.ndarray]


@dataclass(frozen=True, eq=False)
class BlockSums:
    """The gradients of an aligned block, of each table: which of the rows pulled have one, bool [n], and its sum over
    the block's parts, float32 [n, D]; others are undefined."""

    tables: Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False, kw_only=True)
class PartedBatch(BatchData):
    """What a trainer computes of a global batch. `share` is that of a single part, whose gradients are pushed as they
    are; of several, whose sums are weighted, it is 1. 0: nothing is updated by it.

    Attributes:
        own: the parts that have examples, ascending; or one with an example of another part.
        blocks: the aligned blocks of all parts of this trainer.
        sums: of each block, if there are several; the step fills it, and what pushes them reads it.
    """

    own: tuple[OnePart, ...]
    blocks: Sequence[range]
    sums: list[BlockSums] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether this trainer has one part of each batch."""
        return len(self.blocks) == 1 and len(self.blocks[0]) == 1


def block_sums(
    data: PartedBatch, gradients: Sequence[Sequence[np.ndarray]], tables: Sequence[tuple[int, int]]
) -> list[BlockSums]:
    """Returns the sums of each block of a batch.

    Args:
        gradients: of each part of `data.own`, which all have examples, and each table, float32 [n, D].
        tables: of each, the rows pulled and D.
    """
    found = []
    for block in data.blocks:
        chosen = [at for at, part in enumerate(data.own) if part.number in block]
        slots, shares = [data.own[at].number for at in chosen], [data.own[at].data.share for at in chosen]
        sums = []
        for table, shape in enumerate(tables):
            index = [data.own[at].index[table] for at in chosen]
            sums.append(kernels.tree_sum(slots, index, [gradients[at][table] for at in chosen], shares, *shape))
        found.append(BlockSums(sums))
    return found


def frames_of(sums: Sequence[BlockSums], table: int, places: np.ndarray) -> list[np.ndarray]:
    """Returns the two frames of a push of several blocks, of one table and one node: which of the node's rows each
    block has, bits uint8 [blocks, ceil(n / 8)], and their gradients, float32 [k, D], block by block.

    Args:
        places: of the node's rows among those pulled, int64 [n].
    """
    present = [each.tables[table][0][places] for each in sums]
    picked = [kernels.spread(each.tables[table][1], places[mine]) for each, mine in zip(sums, present, strict=True)]
    return [np.packbits(np.array(present), axis=1), np.concatenate(picked)]
