"""How many queries and candidates an evaluation has in memory at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from marius_oac.evaluation.scores import LinkScorer, rounded_up

CPU_TILE = 512  # queries, so many for each piece of work of a thread
CPU_BLOCK_BYTES = 3 << 20  # candidates' embeddings; malloc gets larger arrays from the system each time
CPU_SCORE_BYTES = 96 << 20  # 8 million scores; more would not fit the caches
DEVICE_BLOCK = 1 << 16
SCORE_BYTES = 12  # of a score and the column of a known answer


@dataclass(frozen=True)
class Blocks:
    """How much is in memory at once.

    Attributes:
        tile: queries that are scored at once.
        block: candidates that they are scored against.
        queries: queries that are kept for the next block.
        listed: candidates whose known answers are listed at once, where these are drawn.
    """

    tile: int
    block: int
    queries: int
    listed: int = 1 << 14

    @classmethod
    def fit(cls, scorer: LinkScorer, num_candidates: int, memory: int) -> Blocks:
        """Sizes that need `memory` MiB, half for scores and a quarter each for candidates and queries, but at least
        one piece of scores."""
        budget, dimension, (rows, columns) = memory << 20, scorer.entities.dimension, scorer.piece
        limit = CPU_BLOCK_BYTES // (4 * dimension) if scorer.device.type == "cpu" else DEVICE_BLOCK
        most = min(limit, budget // 4 // (12 * dimension))
        block = min(rounded_up(num_candidates, columns), _rounded_down(most, columns))
        queries = max(rows, budget // 4 // (8 * dimension + 128))
        if scorer.on_cores:
            tile = _rounded_down(min(CPU_TILE, queries), rows)
            listed = budget // 2 // (8 * tile * torch.get_num_threads())
            return cls(tile, block, queries, _rounded_down(listed, columns))
        scores = min(budget // 2, CPU_SCORE_BYTES if scorer.device.type == "cpu" else budget) // SCORE_BYTES
        block = min(block, _rounded_down(scores // rows, columns))
        tile = _rounded_down(min(scores // block, queries), rows)
        return cls(tile, block, queries, block)


def _rounded_down(count: int, grain: int) -> int:
    return max(count // grain, 1) * grain
