"""How much device memory a step on links takes beside the rows and arrays that it is given; see `runs.memory.plan`.

Sums of what is held at once where that is the most, as a dry run of the step shows it (docs/gpu.md).
"""

from __future__ import annotations

import numpy as np

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.distances import tile_bytes
from marius_oac.models.link_prediction.losses import make_loss
from marius_oac.models.link_prediction.regularizers import penalized


def link_step_bytes(config: Config, data: EdgeBatch[np.ndarray], rows: int) -> int:
    """Of a batch of `rows` entities."""
    training, model, drawn = config.training, config.model, data.negatives
    decoder, loss = make_decoder(model), make_loss(training.loss)
    dimension, edges, sides = model.dimension, len(data.heads), 1 if model.reciprocal else 2
    negatives = 0 if drawn is None else drawn.size * dimension
    gathered, relations = 2 * edges * dimension + negatives, edges * decoder.relation_width(dimension)
    queries, scores = sides * edges * dimension, sides * edges * (rows if drawn is None else drawn.shape[2] + 1)
    # Chunks of two sizes are computed one by one.
    parts = 1 if drawn is None or edges % drawn.shape[1] == 0 else drawn.shape[1]
    made_of_scores = loss.kept + (loss.held - loss.kept) / parts
    kept = gathered + relations + decoder.held.forward * queries
    penalties = (gathered - negatives + relations) * penalized(training.regularization)
    most = [
        kept + made_of_scores * scores,
        kept + scores + queries + (1 + (parts > 1)) * negatives,
        kept + penalties + scores * loss.one_gradient + decoder.held.backward * queries + negatives,
        2 * gathered + 12 * (2 * edges + negatives // dimension) + rows * dimension,  # an embedding's gradient sorts
    ]
    if decoder.distance or decoder.compiled is None:
        unneeded = relations * (not decoder.held.relations)
        differences = tile_bytes(decoder.distance, scores // parts, dimension) // 4
        most.append(kept - unneeded + 2 * scores + queries + negatives + differences)
    if not config.encoder:
        most.append((1 + (RowOptimizer(training.optimizer).state_width(dimension) > 0)) * rows * dimension)
    indices = 2 * edges + sides * edges + negatives // dimension
    return int(4 * max(most)) + 8 * indices
