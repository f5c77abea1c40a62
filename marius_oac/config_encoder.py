"""The `encoder` section of a configuration: layers that make a node's value from its neighbourhood's.

Imports neither torch nor numba. Every field's description is its help text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from marius_oac.config_sections import Moment, PositiveInt, Section, Switch


class SageConfig(Section):
    kind: Literal["sage"] = Field(description="A GraphSAGE layer.")
    dimension: PositiveInt = Field(description="Floats of an output.")
    aggregator: Literal["mean", "gcn"] = Field(
        "mean", description="mean: of the neighbours, beside the node itself; gcn: of both together."
    )


class GatConfig(Section):
    kind: Literal["gat"] = Field(description="A graph attention layer.")
    dimension: PositiveInt = Field(description="Floats of each head's output.")
    heads: PositiveInt = Field(4, description="Attention heads.")
    merge: Literal["concat", "mean"] | None = Field(
        None, description="Heads side by side, or their mean; default: the mean in the last layer."
    )
    attend_to_self: Switch = Field(True, description="A node is one of its neighbours.")


class EncoderConfig(Section):
    layers: tuple[Annotated[SageConfig | GatConfig, Field(discriminator="kind")], ...] = Field(
        min_length=1, description="Layers, from the outermost neighbours to the node itself."
    )
    dropout: Moment = Field(0.0, description="Share of each layer's inputs that a training batch leaves out.")
