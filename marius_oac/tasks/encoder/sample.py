"""A small batch of made-up neighbours: see `runs.arithmetic`."""

from __future__ import annotations

import numpy as np

from marius_oac.batches import BlockData, EdgeBatch, EncodedBatch, NodeBatch
from marius_oac.runs.arithmetic import numbers, picked
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.tasks.graph import GraphConfig, entity_layout

SEEDS, _NEIGHBORS = 64, 4


def encoded(encoder: GraphEncoder, head: EdgeBatch[np.ndarray] | NodeBatch[np.ndarray]) -> EncodedBatch[np.ndarray]:
    """A batch whose nodes are each other's neighbours, in every layer."""
    block = BlockData(np.arange(SEEDS + 1) * _NEIGHBORS, picked(SEEDS * _NEIGHBORS, SEEDS, 5))
    features = None if encoder.features is None else numbers(SEEDS, encoder.features.shape[1])
    return EncodedBatch(
        head=head, blocks=(block,) * len(encoder.config.layers), inputs=np.arange(SEEDS), features=features
    )


def rows_of(config: GraphConfig) -> list[tuple[int, int, int]]:
    """The shapes of `Sample` of these nodes' rows, if they have any."""
    if not config.row_dimension:
        return []
    layout = entity_layout(config)
    return [(SEEDS, layout.dimension, layout.state_width)]
