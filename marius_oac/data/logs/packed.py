"""Examples of a log as bytes, in which one trainer sends them to another (`together.py`).

    head      int64 [2 + F + 2 M]: the number of examples n; `LogBlock.cut`; for each of F single-valued features
              whether it has checks; for each of M bags and sequences how many values it has, and whether these have
              checks
    int64     keys of each single-valued feature [n], offsets of each bag [n + 1], keys of each bag [v]
    float32   numbers [n, N], labels [n], weights [n] if examples have some
    uint32    checks of each single-valued feature [n], and of each bag [v], that has some, up to a multiple of 8 bytes

Features are in the order of the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.columns import Bag, LogBlock
from marius_oac.data.logs.lent import LentMemory
from marius_oac.types import present


def pack(block: LogBlock, chosen: Sequence[np.ndarray], memory: LentMemory) -> list[np.ndarray]:
    """The examples of a block with labels that each of some trainers needs, as uint8 [bytes].

    Args:
        chosen: for each trainer the indices of its examples, int64 [n].
        memory: lends what they are written to.
    """
    cut = [[bag.take(each) for bag in block.bags.values()] for each in chosen]
    sizes = [_bytes(block, each.size, bags) for each, bags in zip(chosen, cut, strict=True)]
    # One array, since the system makes large ones of large pages, which cost less.
    ends = np.cumsum(sizes)
    content = memory.borrow(int(ends[-1]))
    parts = [content[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    for part, each, bags in zip(parts, chosen, cut, strict=True):
        _write(_Space(part), block, each, bags)
    return parts


def _bytes(block: LogBlock, size: int, bags: Sequence[Bag]) -> int:
    """Of so many examples with these bags; a multiple of 8, so that the next one's begin at one."""
    wide = 2 + len(block.keys) * (1 + size) + sum(2 + bag.offsets.size + bag.keys.size for bag in bags)
    checks = sum(each is not None for each in block.checks.values())
    single = 1 + (block.weights is not None) + block.numbers.shape[1] + checks
    narrow = size * single + sum(bag.keys.size for bag in bags if bag.checks is not None)
    return 8 * (wide + (narrow + 1) // 2)


def _write(space: _Space, block: LogBlock, chosen: np.ndarray, bags: Sequence[Bag]) -> None:
    size, width = chosen.size, block.numbers.shape[1]
    head = [size, block.cut, *(each is not None for each in block.checks.values())]
    head += [number for bag in bags for number in (bag.keys.size, bag.checks is not None)]
    space.take(np.int64, len(head))[:] = head
    for keys in block.keys.values():
        np.take(keys, chosen, out=space.take(np.int64, size), mode="clip")  # with other modes `out` is buffered
    for each in (*(bag.offsets for bag in bags), *(bag.keys for bag in bags)):
        space.take(np.int64, each.size)[:] = each
    numbers = space.take(np.float32, width * size).reshape(size, width)
    np.take(block.numbers, chosen, axis=0, out=numbers, mode="clip")
    for column in (present(block.labels), block.weights):
        if column is not None:
            np.take(column, chosen, out=space.take(np.float32, size), mode="clip")
    for checks in block.checks.values():
        if checks is not None:
            np.take(checks, chosen, out=space.take(np.uint32, size), mode="clip")
    for bag in bags:
        if bag.checks is not None:
            space.take(np.uint32, bag.checks.size)[:] = bag.checks
    if space.left:
        space.take(np.uint32, 1)[:] = 0


def unpack(content: np.ndarray, config: LogConfig) -> LogBlock:
    """The examples that `pack` has written, mostly as views of `content`, uint8 [bytes], aligned to 8 bytes.

    Raises:
        ValueError: no examples of this configuration are written so.
    """
    space = _Space(content)
    singles = [each.name for each in config.single_valued()]
    several = [each.name for each in (*config.multi_valued, *config.sequences)]
    size, cut, *flags = space.take(np.int64, 2 + len(singles) + 2 * len(several)).tolist()
    have, counts, bags_have = flags[: len(singles)], flags[len(singles) :: 2], flags[len(singles) + 1 :: 2]
    keys = {name: space.take(np.int64, size) for name in singles}
    offsets = [space.take(np.int64, size + 1) for _ in several]
    bag_keys = [space.take(np.int64, count) for count in counts]
    # Copied, since batches get views of them, and what arrived can't be written to.
    numbers = space.take(np.float32, config.num_numbers * size).reshape(size, config.num_numbers).copy()
    labels = space.take(np.float32, size).copy()
    weights = space.take(np.float32, size).copy() if config.weight is not None else None
    checks = {name: space.take(np.uint32, size) if has else None for name, has in zip(singles, have, strict=True)}
    bag_checks = [space.take(np.uint32, n) if has else None for n, has in zip(counts, bags_have, strict=True)]
    if space.left not in (0, 4):
        raise ValueError(f"{space.left} bytes are left")
    for each, values in zip(offsets, bag_keys, strict=True):
        if each[0] or each[-1] != values.size or (np.diff(each) < 0).any():
            raise ValueError("offsets that don't ascend to the number of values")
    found = zip(several, bag_keys, bag_checks, offsets, strict=True)
    bags = {name: Bag(values, check, places) for name, values, check, places in found}
    return LogBlock(labels, numbers, keys, checks, bags, cut, weights)


class _Space:
    """Bytes that are divided from the front."""

    def __init__(self, content: np.ndarray):
        self._content, self._at = content, 0

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return int(self._content.size) - self._at

    def take(self, dtype: type[np.generic], count: int) -> np.ndarray:
        """The next elements, as a view. Raises ValueError if there are not so many."""
        size = np.dtype(dtype).itemsize * count
        if not 0 <= size <= self.left:
            raise ValueError(f"{count} elements of {np.dtype(dtype)} in {self.left} bytes")
        self._at += size
        return self._content[self._at - size : self._at].view(dtype)
