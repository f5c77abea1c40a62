"""Which virtual parts of a global batch a trainer computes, and the aligned blocks that it sums by itself.

Sums over parts are made in a binary tree: parts 0 and 1, 2 and 3, ...; then (0, 1) and (2, 3); and so on. An *aligned
block* is a node of that tree: 2^k parts from a multiple of 2^k on. Of consecutive parts the largest aligned blocks are
summed by the trainer, and whoever gets these sums goes on with the same tree. So the order of the sums does not depend
on who computes which parts. EasyScale (SC'22) does so for dense models, with one virtual worker each.
"""

from __future__ import annotations


def parts_of(trainer: int, trainers: int, parts: int) -> range:
    """Returns the parts that one of so many trainers computes."""
    return range(parts * trainer // trainers, parts * (trainer + 1) // trainers)


def blocks_of(parts: range, every: int) -> list[range]:
    """Returns the largest aligned blocks that consecutive parts consist of, ascending.

    Args:
        parts: some of all parts.
        every: number of all parts. What is missing behind the last one counts as empty parts.
    """
    found, first = [], parts.start
    end = 1 << (every - 1).bit_length() if parts.stop == every else parts.stop
    while first < parts.stop:
        size = 1
        while first % (2 * size) == 0 and first + 2 * size <= end:
            size *= 2
        found.append(range(first, min(first + size, parts.stop)))
        first += size
    return found
