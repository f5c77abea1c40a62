"""The result of an evaluation of a trained model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metrics:
    """An evaluation's metrics by name. It prints as a table."""

    title: str
    values: dict[str, float]

    def __str__(self) -> str:
        lines = [f"  {name:<28}{value:,.4f}" for name, value in self.values.items() if ".heads." not in name]
        return "\n".join([self.title, *(line for line in lines if ".tails." not in line)])
