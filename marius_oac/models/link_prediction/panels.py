"""Memory and tiles of a batch whose products have bfloat16 inputs; see `kernels.cpu.bfloat16_lanes`."""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.bfloat16_gemm import VECTOR
from marius_oac.kernels.cpu.bfloat16_lanes import Panels
from marius_oac.kernels.cpu.lanes import Arrays
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.tiles import blocks
from marius_oac.models.link_prediction.program import Waves

TILE_EDGES = 32
"""At least, if the chunk has as many."""
TILE_SCORES = 1 << 16
"""The target: half of what it is in float32, as rounded gradients lie beside them, twice."""


def pairwise(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """`blocks` whose lengths are even, but for the last one: pairs of edges are in one tile."""
    cuts = blocks(0, -(-(stop - start) // 2), max(1, size // 2))
    return [(start + 2 * begin, min(start + 2 * end, stop)) for begin, end in cuts]


def make_panels(batch: Arrays, waves: Waves, chunks: int, lanes: int, scratch: Scratch) -> Panels:
    """Takes the rounded matrices of a batch from `scratch`, for so many lanes."""
    (sides, size, dimension), per_group = batch.work.queries.shape, batch.per_group
    lengths = [[tile.stop - tile.start for tile in wave] for wave in waves]
    longest, in_wave = max(map(max, lengths)), max(map(sum, lengths))
    groups, packed = sides * chunks, sides * chunks if batch.form.sampled else 1
    pairs, candidate_pairs = -(-dimension // 2), -(-per_group // 2)
    own = max(longest * max(pairs, candidate_pairs), VECTOR * pairs)

    def take(name: str, *shape: int, dtype: type = np.uint32) -> np.ndarray:
        return scratch.take(f"rounded {name}", *shape, dtype=dtype)

    return Panels(
        for_scores=take("for_scores", packed, pairs, _padded(per_group)),
        for_queries=take("for_queries", packed, candidate_pairs, _padded(dimension)),
        queries=take("queries", (sides * size + groups) // 2 + 1, _padded(dimension)),
        gradients=take("gradients", (in_wave + groups) // 2 + 1, per_group),
        own=take("own", lanes, _padded(own)),
        scores=take("scores", lanes, _padded(longest * per_group), dtype=np.float32),
    )


def _padded(width: int) -> int:
    return -(-width // VECTOR) * VECTOR
