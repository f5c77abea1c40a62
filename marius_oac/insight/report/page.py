"""Makes the HTML file of a report: Jinja2 escapes everything, and the page forbids itself scripts and other files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from marius_oac import __version__
from marius_oac.errors import InputError, how_to_install
from marius_oac.evaluation.quality import Quality
from marius_oac.insight.report import details, learning, quality, rows, space, speed
from marius_oac.insight.report.curves import AXES
from marius_oac.insight.report.drawing import check_matplotlib
from marius_oac.insight.report.history import read_history
from marius_oac.insight.report.parts import Report
from marius_oac.runtime.console import escaped
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
    paths = [Path(run) for run in runs]
    target = Path(out) if out else paths[0] / REPORT
    check_target(target)
    histories = [read_history(path) for path in paths]
    write_page(target, render(Report(histories, [measure(path) for path in paths] if measure else ())))
    return target


def check_target(target: Path) -> None:
    """Raises InputError where a page can't be written there, or a library is missing."""
    check_matplotlib()
    check_place(target)
    check_no_link(target)
    if target.is_dir():
        raise InputError("is a folder: name a file", target)


def write_page(target: Path, page: str) -> None:
    """Writes a page. Raises InputError where the disk is full, or the file can't be written."""
    with disk_errors(target):
        make_folder(target.parent)
    write_atomically(target, page)


def render(report: Report) -> str:
    """The page of a report of runs."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise InputError(f"needs Jinja2: {how_to_install('report')}", "report") from None
    made = (
        learning.summary, learning.comparison, learning.learning, quality.quality, speed.speed, rows.rows, rows.disk,
        space.memory, details.nodes, details.everything,
    )  # fmt: skip
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"printable": lambda text: escaped(str(text)), "coded": coded}
    environment.globals["svg"] = Markup
    here = files(__package__)
    page = environment.from_string((here / "page.html.j2").read_text("utf-8"))
    names = [run.name for run in report.runs]
    return page.render(
        heading=", ".join(names),
        style=(here / "page.css").read_text("utf-8"),
        sections=[section for make in made if (section := make(report)) is not None],
        axes=AXES,
        legend=[(report.letter(number), name) for number, name in enumerate(names)] if report.several else [],
        live=report.live,
        version=__version__,
    )


def coded(text: str) -> list[tuple[bool, str]]:
    """The pieces of a sentence, and whether each is code: what stands between backticks."""
    return [(number % 2 == 1, piece) for number, piece in enumerate(text.split("`")) if piece]
