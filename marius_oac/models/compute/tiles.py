"""How a batch is cut up: by its shape alone, never by the number of threads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Tile(NamedTuple):
    """Edges [start, stop) of one chunk on side number `s`; their scores begin at `offset` of the wave's."""

    s: int
    chunk: int
    start: int
    stop: int
    offset: int

    def of(self, scores: np.ndarray, candidates: int) -> np.ndarray:
        """This tile's [edges, candidates] of the wave's flat scores."""
        edges = self.stop - self.start
        return scores[self.offset : self.offset + edges * candidates].reshape(edges, candidates)


def blocks(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Splits [start, stop) into as few ranges as hold `size` at most, of lengths that differ by one at most."""
    count = -(-(stop - start) // size)
    cuts = [start + (stop - start) * i // count for i in range(count + 1)] if count else []
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def stretches(wave: list[Tile]) -> list[Tile]:
    """The tiles of each chunk and side as one: they lie behind each other, the edges and the scores."""
    merged: list[Tile] = []
    for tile in wave:
        if merged and merged[-1][:2] == tile[:2]:
            merged[-1] = merged[-1]._replace(stop=tile.stop)
        else:
            merged.append(tile)
    return merged
