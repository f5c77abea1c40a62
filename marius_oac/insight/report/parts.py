"""What a page consists of, as data: sections of sentences, figures and tables. `page` makes HTML of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marius_oac.errors import size_text
from marius_oac.evaluation.quality import Quality
from marius_oac.insight.report.history import History

MOST_ROWS = 200
"""Of a table by epoch: of a longer one each n-th row is there."""


@dataclass(frozen=True)
class Report:
    """The runs, which have letters, and what is said of them.

    Attributes:
        qualities: of each run what was measured with its model; empty: nothing was.
        live: the seconds after which the browser reads the page again, as the run goes on; None: never.
    """

    runs: Sequence[History]
    qualities: Sequence[Quality] = ()
    live: float | None = None

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.runs) > 1

    def letter(self, number: int) -> str:
        """The name of a run in figures and tables."""
        return "ABCDEFGH"[number]

    def of(self, number: int) -> str:
        """What begins a heading about one of several runs."""
        return f"Run {self.letter(number)}: " if self.several else ""


@dataclass(frozen=True)
class Table:
    """A table: the first cell of a row names it.

    Attributes:
        swatches: of each row the page's colour that it is drawn in.
        open: whether it is shown before somebody asks for it.
        texts: its cells are texts, not numbers.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    swatches: Sequence[str] = ()
    open: bool = True
    texts: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure: its drawings by axis (an empty name: the same for all), what it shows, and its numbers."""

    title: str
    words: str
    drawings: Mapping[str, str]
    table: Table


@dataclass(frozen=True)
class Section:
    """A section of the page. In sentences, what stands between backticks is code."""

    id: str
    title: str
    sentences: Sequence[str] = ()
    blocks: Sequence[Figure | Table] = ()


def number_text(value: Any) -> str:
    """A value of a table: counts in full, other numbers with four digits."""
    if isinstance(value, bool) or value is None:
        return "none" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def of_name(name: str, value: Any) -> str:
    """A value of a summary as text: what has `bytes` in its name with its unit."""
    if "bytes" in name and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18:
        return bytes_text(value)
    if name.endswith("seconds") and isinstance(value, float):
        return f"{value:,.1f} s"
    return number_text(value)


def bytes_text(count: float) -> str:
    """A number of bytes with its unit."""
    return size_text(int(count)) if count >= 10 << 20 else f"{count / 1024:,.0f} KiB"


def columns(report: Report, names: Sequence[str], value: Callable[[History, str], Any]) -> list[list[str]]:
    """Rows of a table with a column for each run; names that no run has a value of are left out."""
    rows = []
    for name in names:
        found = [value(run, name) for run in report.runs]
        if any(each is not None for each in found):
            rows.append([name, *("" if each is None else of_name(name, each) for each in found)])
    return rows


def header(report: Report, first: str) -> list[str]:
    """The header of such a table."""
    return (
        [first, *(report.letter(number) for number in range(len(report.runs)))] if report.several else [first, "value"]
    )


def epoch_table(
    report: Report,
    caption: str,
    values: Sequence[Mapping[int, float | None]],
    text: Callable[[float], str] = number_text,
) -> Table:
    """A table with a row for each epoch, counted from 1, and a column for each run, of which `values` are."""
    epochs = sorted({epoch for each in values for epoch in each})
    step = -(-len(epochs) // MOST_ROWS) or 1
    rows = [
        [f"{epoch:,}", *("" if (value := each.get(epoch)) is None else text(value) for each in values)]
        for epoch in [*epochs[:-1:step], *epochs[-1:]]
    ]
    caption += f", every {step:,} epochs" if step > 1 else ""
    return Table(caption, header(report, "epoch"), rows, open=False)
