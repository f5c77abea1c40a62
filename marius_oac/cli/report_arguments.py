"""`marius-oac report`: its arguments and its call."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from marius_oac.runtime.console import report
from marius_oac.runtime.imports import imports


def add_report(parser: argparse.ArgumentParser) -> None:
    """The arguments of `report`."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run; several are compared")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: report.html in the first)")
    parser.add_argument("--open", action="store_true", help="show it in the browser")


def make_report(args: argparse.Namespace) -> None:
    """Writes the report."""
    with imports():
        from marius_oac.runs.report.page import write_report

    path = write_report(args.runs, args.out)
    report(path)
    if args.open:
        webbrowser.open(path.absolute().as_uri())
