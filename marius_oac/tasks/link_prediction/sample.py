"""A small batch of made-up edges, with a step of the run's own: see `runs.arithmetic`."""

from __future__ import annotations

import numpy as np
import torch

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.models.compute.update import Update
from marius_oac.models.link_prediction.step import LinkPredictionStep, entity_width, relation_width
from marius_oac.runs.arithmetic import Sample, numbers, picked
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.tasks.encoder.sample import SEEDS, encoded, rows_of
from marius_oac.types import Side

_ROWS, _RELATIONS, _EDGES = 500, 8, 1024


def links(
    config: Config, num_relations: int, encoder: GraphEncoder | None, device: torch.device, threads: int
) -> Sample:
    """For link prediction."""
    update = Update.here(config.training.optimizer)
    if encoder is None:
        return Sample(*edges(config, num_relations, _ROWS, device, threads, update), [(_ROWS, *entity_width(config))])
    head, data = edges(config, num_relations, SEEDS, device, threads, update.below())
    return Sample(encoder.step(head, update, device, config.compute), encoded(encoder, data), rows_of(config))


def edges(
    config: Config, num_relations: int, nodes: int, device: torch.device, threads: int, update: Update
) -> tuple[LinkPredictionStep, EdgeBatch[np.ndarray]]:
    """A chunk of edges of so many nodes, with the run's negatives: products have its sizes."""
    width, negatives, kept = relation_width(config), config.training.negatives, min(num_relations, _RELATIONS)
    chunks = 1 if negatives.all else negatives.chunks
    count = min(max(config.training.batch_size // chunks, 1), _EDGES)
    related = bool(kept and width)
    sides = 1 if config.model.reciprocal else len(Side)
    drawn = None if negatives.all else picked(sides * negatives.count, nodes, 17).reshape(sides, 1, -1)
    data = EdgeBatch(
        heads=picked(count, nodes, 7), tails=picked(count, nodes, 13),
        relations=picked(count, kept, 3) if related else None,
        relation_rows=np.arange(kept) if related else None,
        chunk_offsets=(0, count), negatives=drawn,
    )  # fmt: skip
    values = numbers(kept, width) if related else None
    return LinkPredictionStep(config, kept, device, threads, values, update), data
