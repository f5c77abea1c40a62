"""Pictures, drawn by matplotlib into files: `pip install '.[plots]'`."""

from __future__ import annotations

from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check(parser: ArgumentParser) -> None:
    """Ends a program that will draw and can't, with a line of its parser: before the run, not after it."""
    if find_spec("matplotlib") is None:
        parser.error("pictures take matplotlib: pip install '.[plots]'")


def subplots(*shape: int, **options: Any) -> tuple[Figure, Any]:
    """As `matplotlib.pyplot.subplots`, without a screen."""
    import matplotlib  # here, as processes that draw nothing do without

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(*shape, **options)


def save(figure: Figure, path: Path) -> None:
    """Writes the picture, and its folder where it is not there."""
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
