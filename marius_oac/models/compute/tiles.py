"""Cuts a batch into blocks and tiles that depend only on its shape, not on the number of threads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Tile(NamedTuple):
    """Edges [start, stop) of one chunk on side number `s`. Their scores begin at `offset` of the wave's scores."""

    s: int
    chunk: int
    start: int
    stop: int
    offset: int

    def of(self, scores: np.ndarray, candidates: int) -> np.ndarray:
        """This tile's view [edges, candidates] of the wave's scores, float32 [n]."""
        edges = self.stop - self.start
        return scores[self.offset : self.offset + edges * candidates].reshape(edges, candidates)


def blocks(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Splits [start, stop) into the fewest ranges of at most `size`, whose lengths differ by at most one."""
    count = -(-(stop - start) // size)
    cuts = [start + (stop - start) * i // count for i in range(count + 1)] if count else []
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def stretches(wave: list[Tile]) -> list[Tile]:
    """Merges the tiles of each chunk and side, whose edges and scores are consecutive."""
    merged: list[Tile] = []
    for tile in wave:
        if merged and merged[-1][:2] == tile[:2]:
            merged[-1] = merged[-1]._replace(stop=tile.stop)
        else:
            merged.append(tile)
    return merged
