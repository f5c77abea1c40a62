"""Sums of the gradients of virtual parts, in one binary tree whatever the number of trainers.

Each trainer sums its aligned blocks of parts (`nodes/parts/blocks.py`). Each member owns a slice of the parameters: it
gets this slice of every block, goes on with the same tree, and sends the sum to all. gloo's ring sends as much, but
adds up in an order that depends on the number of members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.contract import Flat
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.parts.blocks import blocks_of, parts_of
from marius_oac.types import present

_ROW = np.zeros(1, np.int64)


class TreeReduce(AllReduce):
    """Implements `marius_oac.types.DenseSync`; the step calls `reduce` and `updated` once for each part.

    Args:
        group: of the trainers.
        parts: number of all parts.
    """

    def __init__(self, group: Group, parts: int) -> None:
        super().__init__(group)
        self._blocks = [blocks_of(parts_of(rank, group.size, parts), parts) for rank in range(group.size)]
        self._numbers: Sequence[int] = ()
        self._computed: dict[int, np.ndarray] = {}  # gradients of this batch's parts so far, by number
        self._at = 0

    def begin_batch(self, numbers: Sequence[int]) -> None:
        """Called before a batch, with the parts that are computed next, ascending."""
        self._numbers, self._at, self._computed = numbers, 0, {}

    def reduce(self, gradients: Sequence[torch.Tensor], share: float) -> bool:
        """See `DenseSync.reduce`: an update follows the last part of a batch alone."""
        flat = self._flat = self._flat or Flat(gradients)
        number, self._at = self._numbers[self._at], self._at + 1
        with torch.no_grad():
            if share:
                flat.fill(gradients)
                flat.buffer.mul_(share)
                self._computed[number] = flat.buffer.numpy().copy()
            if self._at < len(self._numbers):
                return False
            begun, self._quiet = self._begin(), False
            self._exchange(flat.buffer)
            flat.give(gradients)
        self._count(begun)
        return True

    def updated(self, batch_index: int) -> None:
        """See `DenseSync.updated`."""
        if self._at == len(self._numbers):
            super().updated(batch_index)

    def of_all_parts(self, mine: Mapping[int, np.ndarray], size: int) -> dict[int, np.ndarray]:
        """Returns arrays, float32 [size], of all parts that have examples, by number; `mine` are this trainer's.
        Collective."""
        group = present(self._channel)
        most = max(blocks[-1].stop - blocks[0].start for blocks in self._blocks)
        sent = torch.zeros(most, 1 + size)  # whether the part has examples, and its array
        first = self._blocks[group.rank][0].start
        for number, array in mine.items():
            sent[number - first, 0], sent[number - first, 1:] = 1.0, torch.from_numpy(array)
        received = [torch.empty(most, 1 + size) for _ in range(group.size)]
        group.all_gather(sent, received)
        firsts = [blocks[0].start for blocks in self._blocks]
        rows = [(start + at, row) for start, part in zip(firsts, received, strict=True) for at, row in enumerate(part)]
        return {number: row[1:].numpy() for number, row in rows if row[0]}

    def _exchange(self, total: torch.Tensor) -> None:
        """Writes the sum over all parts to `total`."""
        group, size = present(self._channel), total.numel()
        found = self._computed
        mine = [_tree([(n, found[n]) for n in block if n in found]) for block in self._blocks[group.rank]]
        length = -(-size // group.size)
        # Of each block whether any of its parts has examples, then its slice.
        padded = torch.zeros(len(mine), group.size, 1 + length)
        for row, block in zip(padded, mine, strict=True):
            if block is not None:
                whole = torch.zeros(group.size * length)
                whole[:size] = torch.from_numpy(block)
                row[:, 0], row[:, 1:] = 1.0, whole.view(group.size, length)
        received = [torch.empty(len(blocks), 1 + length) for blocks in self._blocks]
        group.all_to_all(list(padded.transpose(0, 1).contiguous()), received)
        slots = [block.start for blocks in self._blocks for block in blocks]
        rows = zip(slots, torch.cat(received).numpy(), strict=True)
        own = _tree([(slot, row[1:]) for slot, row in rows if row[0]])
        every = [torch.empty(length) for _ in range(group.size)]
        group.all_gather(torch.zeros(length) if own is None else torch.from_numpy(own), every)
        total.copy_(torch.cat(every)[:size])


def _tree(gradients: Sequence[tuple[int, np.ndarray]]) -> np.ndarray | None:
    """The sum, float32 [n], of blocks by their first part; None of none."""
    if not gradients:
        return None
    values = [np.ascontiguousarray(each).reshape(1, -1) for _, each in gradients]
    slots = [slot for slot, _ in gradients]
    _, total = kernels.tree_sum(slots, [_ROW] * len(slots), values, [1.0] * len(slots), 1, values[0].shape[1])
    return total.reshape(-1)
