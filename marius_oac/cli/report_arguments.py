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
        help="run folder, or folder of a search by `tune`; several runs are compared",
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
        from marius_oac.runs.report.page import write_report

    searches = [path for path in args.runs if (path / "search.json").is_file()]
    if searches and (len(args.runs) > 1 or args.quality):
        raise InputError("is a search, whose report has no other run, and opens no model", searches[0])
    opened = {"data_path": args.data_path, "trust": args.trust}
    if not args.quality and any(opened.values()):
        raise InputError("goes with --quality: without it no model is opened", "--data-path, --trust")
    measure = None
    if args.quality:
        with imports():
            from marius_oac.training.trained import quality_of_run

        measure = partial(quality_of_run, **opened)
    if searches:
        with imports():
            from marius_oac.training.tune.report import write_study_report

        path = write_study_report(searches[0], args.out)
    else:
        path = write_report(args.runs, args.out, measure)
    report(path)
    if args.open:
        webbrowser.open(path.absolute().as_uri())


def add_watch(parser: argparse.ArgumentParser) -> None:
    """The arguments of `watch`."""
    parser.add_argument("run", type=Path, help="run folder; the run may stop and resume meanwhile")
    parser.add_argument("--text", action="store_true", help="show it in the terminal instead of the browser")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--port", type=int, default=0, help="port of the page (default: a free port)")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="time between updates (default: 10; with --text: 2)"
    )
    parser.add_argument("--keep", action="store_true", help="continue after the run has ended, until Ctrl-C")


def watch_run(args: argparse.Namespace) -> None:
    """Shows a run while it trains."""
    with imports():
        from marius_oac.runs.watch.watch import Looks, watch

    if args.text and (args.open or args.port):
        raise InputError("is for the browser: leave out --text", "--open" if args.open else "--port")
    every = (2.0 if args.text else 10.0) if args.every is None else args.every
    watch(args.run, Looks(args.text, every, args.port, args.open, args.keep))
