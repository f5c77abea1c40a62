"""The result of an evaluation of a trained model, and numbers of runs as the terminal shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Metrics:
    """An evaluation's metrics by name. It prints as a table."""

    title: str
    values: dict[str, float]
    digits: ClassVar[int] = 4
    """After the decimal point."""

    def __str__(self) -> str:
        shown = {name: value for name, value in self.values.items() if not {"heads", "tails"} & set(name.split("."))}
        width = max(28, *(len(name) + 2 for name in shown))
        lines = (f"  {name:<{width}}{metric_text(name, value, self.digits)}" for name, value in shown.items())
        return "\n".join([self.title, *lines])


def metric_text(name: str, value: float | None, digits: int = 4) -> str:
    """A metric as text, with so many digits after the decimal point; counts, and examples per second, are whole
    numbers, and `none` is one that does not exist."""
    if value is None or math.isnan(value):
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if name.endswith("_per_second") else f"{value:,.{digits if abs(value) < 1000 else 1}f}"
