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
_NEIGHBORS = Field(10, description="Neighbours that a batch draws for each node, or all.")
_DIMENSION = "default: model.dimension, and in the last layer of a classification one per class."


class SageConfig(Section):
    """A GraphSAGE layer."""

    kind: Literal["sage"] = Field(description="A GraphSAGE layer.")
    neighbors: Neighbors = _NEIGHBORS
    dimension: Width | None = Field(None, description=f"Floats of an output; {_DIMENSION}")
    aggregator: Literal["mean", "gcn"] = Field(
        "mean",
        description="mean: mean of the neighbours, concatenated with the node itself; gcn: mean of both together.",
    )

    def width(self, last: bool) -> int:
        """Floats of an output, of a layer that is `resolved`."""
        return present(self.dimension)


class GatConfig(Section):
    """A GAT layer."""

    kind: Literal["gat"] = Field(description="A graph attention layer.")
    neighbors: Neighbors = _NEIGHBORS
    dimension: Width | None = Field(None, description=f"Floats of each head's output; {_DIMENSION}")
    heads: Width = Field(4, description="Attention heads.")
    merge: Literal["concat", "mean"] | None = Field(
        None, description="Heads side by side, or their mean; default: the mean in the last layer."
    )
    attend_to_self: Bool = Field(True, description="Whether a node is one of its own neighbours.")

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
        description="FILE.py:NAME, a function or class that makes the layer from the width of its input."
    )


Layer = Annotated[SageConfig | GatConfig | ModuleConfig, Field(discriminator="kind")]


class EncoderConfig(Section):
    """`encoder`: its inputs, layers and optimizer."""

    layers: tuple[Layer, ...] = Field(
        min_length=1, description="Layers, from the outermost neighbours to the node itself."
    )
    direction: Literal["in", "out", "both"] = Field(
        "both", description="in: neighbours are where edges to a node come from; out: where its edges lead to; both."
    )
    embeddings: Annotated[NonNegativeInt, Field(le=1 << 20)] | None = Field(
        None,
        description="Floats of each node's trained row; 0: no rows. Default: model.dimension, and 0 "
        "where there are features.",
    )
    features: Annotated[Name | None, FILE] = Field(
        None, description="Parquet file with the columns `name` and `features`, a list of floats for each node."
    )
    dropout: Beta = Field(0.0, description="Dropout probability of each layer's inputs in training.")
    sampler: Literal["own", "dgl"] = Field("own", description="Neighbour sampler: own, or dgl, an optional dependency.")
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
