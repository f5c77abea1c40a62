"""Configurations and random batches for the tests."""

from dataclasses import dataclass

import numpy as np
import torch

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.models.link_prediction.step import LinkPredictionStep, entity_width, relation_width
from marius_oac.types import map_arrays

DECODERS = ["distmult", "complex", "transe-1", "transe-2", "rotate", "dot"]
LOSSES = ["softmax", "logistic", "margin", "self_adversarial"]
OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad", "adam"]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch: n entities, m relations, B edges, C chunks, K negatives, D floats."""

    entities: int = 12
    relations: int = 3
    edges: int = 7
    chunks: int = 2
    negatives: int = 5
    dimension: int = 6


def configure(
    decoder: str, loss: str = "softmax", everything: bool = False, shape: Shape = Shape(), **others
) -> Config:
    """`others` are overrides with __ for the dots."""
    name, _, norm = decoder.partition("-")
    config = Config.build(
        {
            "data": {"path": "none"},
            "model": {"decoder": name, "norm": int(norm or 2), "dimension": shape.dimension},
            "training": {
                "batch_size": shape.edges,
                "negatives": {"count": shape.negatives, "chunks": shape.chunks, "all": everything},
                "loss": {"kind": loss, "margin": 0.75, "temperature": 0.8},
            },
        }
    )
    return config.replace(*(f"{key.replace('__', '.')}={value}" for key, value in others.items()))


@dataclass
class Batch:
    values: np.ndarray
    relations: np.ndarray | None
    data: EdgeBatch[np.ndarray]

    def rows(self, config: Config, state: float = 0.0) -> np.ndarray:
        """The values with their optimizer state behind them."""
        return np.pad(self.values, ((0, 0), (0, entity_width(config)[1])), constant_values=state)

    def step(self, config: Config, threads: int = 1) -> LinkPredictionStep:
        return LinkPredictionStep(
            config, len(self.relations) if self.relations is not None else 0, CPU, threads, self.relations
        )

    def tensors(self) -> EdgeBatch[torch.Tensor]:
        return map_arrays(self.data, torch.from_numpy)


def draw(config: Config, shape: Shape, seed: int = 0, grid: bool = False) -> Batch:
    """A random batch; on a grid of eighths every sum of products is exact, so kinks and ties are hit."""
    generator = np.random.default_rng(seed)
    sides = 1 if config.model.reciprocal else 2
    width = relation_width(config)

    def floats(*size: int) -> np.ndarray:
        drawn = generator.integers(-4, 5, size) / 8 if grid else generator.normal(0, 0.6, size)
        return drawn.astype(np.float32)

    given = {name: generator.integers(shape.entities, size=shape.edges) for name in ("heads", "tails")}
    if width:
        # A dense table with more rows than the batch has relations.
        given["relation_rows"] = np.arange(shape.relations) * 2 + 1
        given["relations"] = generator.integers(shape.relations, size=shape.edges)
    if not config.training.negatives.all:
        given["negatives"] = generator.integers(shape.entities, size=(sides, shape.chunks, shape.negatives))
        given["chunk_offsets"] = tuple((np.arange(shape.chunks + 1) * shape.edges // shape.chunks).tolist())
    values = floats(shape.entities, shape.dimension)
    relations = floats(2 * shape.relations + 1, width) if width else None
    return Batch(values, relations, EdgeBatch(**given))
