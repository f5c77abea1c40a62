"""Makes the HTML file of a report: Jinja2 escapes everything, and the page forbids itself scripts and other files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from marius_oac import __version__
from marius_oac.errors import InputError, how_to_install
from marius_oac.evaluation.quality import Quality
from marius_oac.runs.report import details, learning, quality, rows, space, speed
from marius_oac.runs.report.curves import AXES
from marius_oac.runs.report.drawing import check_matplotlib
from marius_oac.runs.report.history import read_history
from marius_oac.runs.report.parts import Figure, Report, Section, Table
from marius_oac.runtime.files.atomic import check_no_link, check_place, disk_errors, make_folder, write_atomically

REPORT = "report.html"
MOST_RUNS = 8
"""In a report: as many colours are told apart."""


def write_report(
    runs: Sequence[str | Path], out: str | Path | None = None, measure: Callable[[Path], Quality] | None = None
) -> Path:
    """Writes a report of runs, `report.html` in the first one's folder or `out`; returns its path.

    Args:
        measure: opens the model of a run's folder and measures it; None: the report is of what the runs have recorded.

    Raises:
        InputError: there are too many runs, one of them is damaged, a library is missing, or the file can't be written.
    """
    if not 1 <= len(runs) <= MOST_RUNS:
        raise InputError(f"1 to {MOST_RUNS} runs fit in a report, not {len(runs)}", "report")
    check_matplotlib()
    paths = [Path(run) for run in runs]
    target = Path(out) if out else paths[0] / REPORT
    histories = [read_history(path) for path in paths]
    return write_page(target, lambda: render(Report(histories, [measure(path) for path in paths] if measure else ())))


def write_page(target: Path, make: Callable[[], str]) -> Path:
    """Writes a page that `make` makes, if it can be written there; returns `target`. Raises InputError if it can't."""
    check_place(target)
    check_no_link(target)
    if target.is_dir():
        raise InputError("is a folder: name a file", target)
    page = make()
    with disk_errors(target):
        make_folder(target.parent)
    write_atomically(target, page)
    return target


def render(report: Report) -> str:
    """The page of a report of runs."""
    made = (
        learning.summary, learning.comparison, learning.learning, quality.quality, speed.speed, rows.rows, rows.disk,
        space.memory, details.nodes, details.everything,
    )  # fmt: skip
    sections = [section for make in made if (section := make(report)) is not None]
    names = [run.name for run in report.runs]
    legend = [(report.letter(number), name) for number, name in enumerate(names)] if report.several else []
    return html(f"Report: {', '.join(names)}", ", ".join(names), sections, report.axes, legend, report.live)


def html(
    title: str,
    heading: str,
    sections: Sequence[Section],
    axes: Mapping[str, str] | None = None,
    legend: Sequence[tuple[str, str]] = (),
    live: float | None = None,
) -> str:
    """A page of sections.

    Args:
        axes: the horizontal axes to choose from, of `AXES`; None: there is one of each figure's own.
        legend: letter and name of each run, in the order of the page's colours.
        live: as of `Report`.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise InputError(f"needs Jinja2: {how_to_install('report')}", "report") from None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    environment.filters |= {"printable": printable, "coded": coded, "pieces": pieces}
    environment.globals["svg"] = Markup
    here = files(__package__)
    page = environment.from_string((here / "page.html.j2").read_text("utf-8"))
    return page.render(
        title=title,
        heading=heading,
        style=(here / "page.css").read_text("utf-8"),
        sections=[arranged(section) for section in sections],
        axes=axes or {},
        legend=legend,
        live=live,
        every_axis=AXES,
        version=__version__,
    )


def arranged(section: Section) -> Section:
    """The section, in which a figure that would have an empty place beside it has its numbers there."""
    blocks, left = list(section.blocks), False
    for place, block in enumerate(blocks):
        whole = _fills_a_line(block)
        last = place + 1 == len(blocks) or _fills_a_line(blocks[place + 1])
        if isinstance(block, Figure) and not whole and not left and last:
            blocks[place] = replace(block, beside=True, table=replace(block.table, open=True))
        left = not whole and not left and not last
    return replace(section, blocks=blocks)


def _fills_a_line(block: Figure | Table) -> bool:
    return block.beside if isinstance(block, Figure) else block.texts


def printable(text: object) -> str:
    """A text without what could change how the page is read, such as marks that turn the direction of writing."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in str(text))


def pieces(name: object) -> list[str]:
    """The pieces of a name between which a line may end: after its points and underscores."""
    return re.findall(r"[^._]*[._]|[^._]+", printable(name))


def coded(text: str) -> list[tuple[bool, str]]:
    """The pieces of a sentence, and whether each is code: what stands between backticks."""
    return [(number % 2 == 1, piece) for number, piece in enumerate(re.split("`", printable(text))) if piece]
