"""`marius-oac report` and `watch`: their arguments and calls."""

from __future__ import annotations

import argparse
import webbrowser
from functools import partial
from pathlib import Path

from marius_oac.errors import InputError
from marius_oac.runtime.console import report
from marius_oac.runtime.imports import imports


def add_report(parser: argparse.ArgumentParser) -> None:
    """The arguments of `report`."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run folder; several runs are compared",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: report.html in the first folder)"
    )
    parser.add_argument("--open", action="store_true", help="open the report in the browser")
    parser.add_argument(
        "--quality", action="store_true",
        help="also evaluate the models: MRR by relation and node degree, calibration, a map of the embeddings"
    )  # fmt: skip


def make_report(args: argparse.Namespace) -> None:
    """Writes the report."""
    with imports():
        from marius_oac.insight.report.page import write_report

    opened = {"data_path": args.data_path, "trust": args.trust}
    if not args.quality and any(opened.values()):
        raise InputError("goes with --quality: without it no model is opened", "--data-path, --trust")
    measure = None
    if args.quality:
        with imports():
            from marius_oac.training.trained import quality_of_run

        measure = partial(quality_of_run, **opened)
    path = write_report(args.runs, args.out, measure)
    report(path)
    if args.open:
        webbrowser.open(path.absolute().as_uri())


def add_watch(parser: argparse.ArgumentParser) -> None:
    """The arguments of `watch`."""
    parser.add_argument("run", type=Path, help="run folder; the run may stop and resume meanwhile")
    parser.add_argument(
        "--page", action="store_true", help="write RUN/report.html again and again instead; the page reloads itself"
    )
    parser.add_argument("--open", action="store_true", help="open that page in the browser")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="time between updates (default: 2; with a page: 10)"
    )
    parser.add_argument("--keep", action="store_true", help="continue after the run has ended, until Ctrl-C")


def watch_run(args: argparse.Namespace) -> None:
    """Shows a run while it trains."""
    with imports():
        from marius_oac.insight.watch.watch import Looks, watch

    page = args.page or args.open
    every = (10.0 if page else 2.0) if args.every is None else args.every
    watch(args.run, Looks(page, every, args.open, args.keep))
