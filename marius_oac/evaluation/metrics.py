"""The result of an evaluation of a trained model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metrics:
    """An evaluation's metrics by name. It prints as a table."""

    title: str
    values: dict[str, float]

    def __str__(self) -> str:
        shown = {name: value for name, value in self.values.items() if ".heads." not in name and ".tails." not in name}
        lines = (f"  {name:<28}{value:{',' if isinstance(value, int) else ',.4f'}}" for name, value in shown.items())
        return "\n".join([self.title, *lines])
