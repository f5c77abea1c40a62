"""What a network is told about its features, and what it gets of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Field:
    """A feature that gives an example one vector: single-valued, or several values pooled into one."""

    name: str
    dimension: int


@dataclass(frozen=True)
class SequenceField:
    """A feature that gives an example up to `max_values` vectors, the newest last."""

    name: str
    dimension: int
    max_values: int


@dataclass(frozen=True)
class Schema:
    """The features of a model.

    Attributes:
        num_numbers: N, numeric columns.
        fields: F of them, single-valued features first, then pooled ones, each in the order of the config.
        sequences: in the order of the config.
        target: the name of the field that the sequences lead up to, or None.
    """

    num_numbers: int
    fields: tuple[Field, ...]
    sequences: tuple[SequenceField, ...] = ()
    target: str | None = None

    @property
    def width(self) -> int:
        """Floats of all fields and numbers side by side."""
        return sum(field.dimension for field in self.fields) + self.num_numbers


@dataclass(frozen=True)
class Inputs:
    """A batch of B examples, float32.

    Attributes:
        numbers: [B, N].
        fields: [B, D_f] of each field, in the order of the schema.
        stacked: [B, F, D] where all fields have one dimension, else None.
        first_order: [B, F], a weight of each field's rows, where the network asks for them, else None.
        sequences: by name, [B, L, D] padded with zeros at the end, and lengths, int64 [B].
    """

    numbers: Tensor
    fields: tuple[Tensor, ...]
    stacked: Tensor | None
    first_order: Tensor | None
    sequences: Mapping[str, tuple[Tensor, Tensor]]
