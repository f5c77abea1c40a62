"""The description of a network's features, and its inputs for a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Field:
    """A feature with one vector per example: single-valued, or several values pooled into one."""

    name: str
    dimension: int


@dataclass(frozen=True)
class SequenceField:
    """A feature with up to `max_values` vectors per example, the newest last."""

    name: str
    dimension: int
    max_values: int


@dataclass(frozen=True)
class Schema:
    """The features of a model.

    Attributes:
        num_numbers: N, the number of numeric columns.
        fields: F fields, single-valued features first, then pooled ones, each in the order of the config.
        sequences: in the order of the config.
        target: the name of the field that follows the sequences, or None.
    """

    num_numbers: int
    fields: tuple[Field, ...]
    sequences: tuple[SequenceField, ...] = ()
    target: str | None = None

    @property
    def width(self) -> int:
        """The number of floats of all fields and numbers."""
        return sum(field.dimension for field in self.fields) + self.num_numbers


@dataclass(frozen=True)
class Inputs:
    """A batch of B examples, float32.

    Attributes:
        numbers: [B, N].
        fields: [B, D_f] for each field, in the order of the schema.
        stacked: [B, F, D] if all fields have the same dimension, else None.
        first_order: [B, F], the weights of each field's rows, if the network has `first_order`, else None.
        sequences: by name, [B, L, D] padded with zeros at the end, and lengths, int64 [B].
    """

    numbers: Tensor
    fields: tuple[Tensor, ...]
    stacked: Tensor | None
    first_order: Tensor | None
    sequences: Mapping[str, tuple[Tensor, Tensor]]
