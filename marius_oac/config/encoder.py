"""The `encoder` section of a configuration: layers that make a node's value from its neighbourhood's.

Imports neither torch nor numba. Every field's description is its help text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from marius_oac.config.named_files import FILE, MODULE
from marius_oac.config.sections import Beta, Bool, DenseOptimizerConfig, Name, NonNegativeInt, Section, Width
from marius_oac.types import present

Neighbors = Annotated[int, Field(gt=0, lt=1 << 31, strict=True)] | Literal["all"]
_NEIGHBORS = Field(10, description="Number of neighbours sampled for each node, or all.")
_DIMENSION = "Default: model.dimension; in the last layer of a classifier, the number of classes."


class SageConfig(Section):
    """A GraphSAGE layer."""

    kind: Literal["sage"] = Field(description="A GraphSAGE layer.")
    neighbors: Neighbors = _NEIGHBORS
    dimension: Width | None = Field(None, description=f"Dimension of the output, in floats. {_DIMENSION}")
    aggregator: Literal["mean", "gcn"] = Field(
        "mean",
        description="mean: mean of the neighbours, concatenated with the node itself. gcn: mean of the neighbours and "
        "the node.",
    )

    def width(self, last: bool) -> int:
        """Floats of an output, of a layer that is `resolved`."""
        return present(self.dimension)


class GatConfig(Section):
    """A GAT layer."""

    kind: Literal["gat"] = Field(description="A graph attention (GAT) layer.")
    neighbors: Neighbors = _NEIGHBORS
    dimension: Width | None = Field(None, description=f"Dimension of each head's output, in floats. {_DIMENSION}")
    heads: Width = Field(4, description="Number of attention heads.")
    merge: Literal["concat", "mean"] | None = Field(
        None, description="How the outputs of heads are combined. Default: concat, and mean in the last layer."
    )
    attend_to_self: Bool = Field(
        True, description="Whether each node attends to itself. If false, only nodes with an edge to themselves do."
    )

    def merged(self, last: bool) -> Literal["concat", "mean"]:
        """`merge`, or its default."""
        return self.merge or ("mean" if last else "concat")

    def width(self, last: bool) -> int:
        """Floats of an output, of a layer that is `resolved`."""
        return present(self.dimension) * (self.heads if self.merged(last) == "concat" else 1)


class ModuleConfig(Section):
    """A layer from a user's file."""

    kind: Literal["module"] = Field(description="A layer of your own.")
    neighbors: Neighbors = _NEIGHBORS
    module: Annotated[Name, MODULE] = Field(
        description="FILE.py:NAME, a function or class that creates the layer from the width of its input."
    )


Layer = Annotated[SageConfig | GatConfig | ModuleConfig, Field(discriminator="kind")]


class EncoderConfig(Section):
    """`encoder`: its inputs, layers and optimizer."""

    layers: tuple[Layer, ...] = Field(
        min_length=1, description="Layers, from the outermost neighbours to the node itself."
    )
    direction: Literal["in", "out", "both"] = Field(
        "both",
        description="Edges that define the neighbours of a node. in: incoming. out: outgoing. both: all its edges.",
    )
    embeddings: Annotated[NonNegativeInt, Field(le=1 << 20)] | None = Field(
        None,
        description="Dimension of the trained row of each node, in floats. 0: no rows. Default: model.dimension, or 0 "
        "if there are features.",
    )
    features: Annotated[Name | None, FILE] = Field(
        None, description="Parquet file with the columns `name` and `features`, a list of floats for each node."
    )
    dropout: Beta = Field(0.0, description="Dropout probability of each layer's inputs during training.")
    sampler: Literal["own", "dgl"] = Field(
        "own", description="Neighbour sampler: own, or dgl, which needs the package DGL."
    )
    optimizer: DenseOptimizerConfig = DenseOptimizerConfig()

    def resolved(self, dimension: int, last: int | None = None) -> EncoderConfig:
        """A copy with all defaults that depend on `model.dimension`; `last` is the last layer's width, if another."""
        embeddings = self.embeddings
        if embeddings is None:
            embeddings = 0 if self.features else dimension
        defaults = [dimension] * (len(self.layers) - 1) + [last or dimension]
        layers = tuple(
            layer.model_copy(update={"dimension": default}) if getattr(layer, "dimension", 1) is None else layer
            for layer, default in zip(self.layers, defaults, strict=True)
        )
        return self.model_copy(update={"embeddings": embeddings, "layers": layers})

    @property
    def width(self) -> int | None:
        """Floats of an encoded node; of a `resolved` section. None where only the layer itself knows."""
        last = self.layers[-1]
        return None if isinstance(last, ModuleConfig) else last.width(last=True)

    @property
    def fan_outs(self) -> list[int]:
        """Neighbours per node and layer, as `data.sampling` wants them: -1 for all."""
        return [-1 if layer.neighbors == "all" else layer.neighbors for layer in self.layers]

    @model_validator(mode="after")
    def _inputs(self) -> EncoderConfig:
        if self.embeddings == 0 and not self.features:
            raise ValueError("embeddings: 0, and there are no encoder.features: nothing is left to encode")
        return self
