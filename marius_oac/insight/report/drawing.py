"""Figures as SVG in the text of a page, in the page's colours, at the size at which they are read.

Matplotlib draws them: it is what the benchmarks' figures are drawn with, has been kept up for twenty years, and its SVG
is text and paths that need no script. Plotly and Vega would bring 1 to 4 MB of JavaScript into every report, and a page
with a script of its own can not forbid those that a stranger's file might smuggle in; this one forbids all scripts.

A colour of the page is drawn as a colour that nothing else has, and becomes a variable of the style sheet afterwards;
so one drawing does for light and dark. On a narrow page a figure can be scrolled: text keeps its size. Matplotlib is
imported when the first figure is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marius_oac.errors import InputError, how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 700
"""Of a figure, in CSS pixels."""
DASHES: tuple[Any, ...] = ("solid", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 2, 2)))
"""Of the runs' lines: curves of runs with the same bits lie upon each other, and all are to be seen."""

_COLOURS = (
    "ink", "soft", "grid", "surface", *(f"run-{number}" for number in range(8)),
    *(f"stage-{number}" for number in range(10)), *(f"heat-{number}" for number in range(6)),
)  # fmt: skip
"""Of the page's style sheet."""


def colour(name: str) -> str:
    """The stand-in for a colour of the page."""
    return f"#0100{_COLOURS.index(name) + 1:02x}"


def _variable(match: re.Match[str]) -> str:
    return f"var(--{_COLOURS[int(match.group(1), 16) - 1]})"


Paint = Callable[["Axes"], None]
"""Draws into axes."""


def check_matplotlib() -> None:
    """Raises InputError, with what to install, if Matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(f"needs Matplotlib: {how_to_install('report')}", "report") from None


def draw(name: str, paint: Paint, height: int = 250, left: int = 52) -> str:
    """A figure as SVG.

    Args:
        name: unique in the page.
        height: in pixels; `left` of them are for the names of the vertical axis.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False, "font.size": 11,
        "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"], "path.simplify": True,
        "axes.edgecolor": colour("soft"), "axes.labelcolor": colour("soft"), "text.color": colour("ink"),
        "xtick.color": colour("soft"), "ytick.color": colour("soft"), "grid.color": colour("grid"),
        "axes.facecolor": "none", "figure.facecolor": "none", "axes.grid": True, "grid.linewidth": 0.8,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "lines.linewidth": 1.9,
        "xtick.major.size": 3, "ytick.major.size": 0, "axes.spines.left": False,
    }  # fmt: skip
    usual = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    with matplotlib.rc_context(usual | style):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        FigureCanvasSVG(figure)
        # Matplotlib's own layouts measure each text, and take as long as all the rest.
        axes = figure.add_axes((left / WIDTH, 44 / height, 1 - (left + 22) / WIDTH, 1 - 54 / height))
        axes.grid(visible=False, axis="x")
        paint(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _in_page(text.getvalue(), height)


def _in_page(svg: str, height: int) -> str:
    """The drawing as an element of an HTML page: without what a file has before it, in the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(
        r"<svg [^>]*>", f'<svg viewBox="0 0 {WIDTH} {height}" aria-hidden="true" focusable="false">', svg, count=1
    )
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font-family: [^;\"]*sans-serif;?", "", svg)
    svg = re.sub(r"#0100([0-9a-f]{2})", _variable, svg)
    svg = re.sub(r"<[^>]+>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag.group()), svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


def tidy(axes: Axes, x_label: str, y_label: str = "") -> None:
    """Labels axes."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=x_label in ("batch", "epoch")))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(x=0.01)


def band(axes: Axes, edges: np.ndarray, heights: np.ndarray, colours: Sequence[str]) -> None:
    """Stacked steps: `heights`, float64 [kinds, bins], over bins between `edges`, float64 [bins + 1]."""
    padded = np.append(heights, heights[:, -1:], axis=1)
    axes.stackplot(edges, padded, colors=colours, step="post", linewidth=0.4, edgecolor=colour("surface"))
    axes.set_ylim(0)


def heat_map(axes: Axes, edges: np.ndarray, values: np.ndarray, names: Sequence[str]) -> None:
    """Rows of cells: `values`, float64 [rows, bins], each from 0 to 1."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([colour(name) for name in _COLOURS if name.startswith("heat")])
    axes.pcolormesh(edges, np.arange(len(names) + 1) - 0.5, values, cmap=colours, vmin=0, vmax=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False)


def bars(axes: Axes, names: Sequence[str], values: Sequence[float], label: str) -> None:
    """A bar for each name, from 0 to 1, the first one at the top."""
    axes.barh(range(len(values)), values, height=0.7, color=colour("stage-0"))
    tidy(axes, label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
