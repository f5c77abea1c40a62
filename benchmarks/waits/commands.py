"""Seconds of each command that a user waits for, beside a plain way and the physical limit.

    python -m benchmarks.waits.commands --folder DIR-ON-THE-DISK

Generates a graph and a click log into --folder (2 GB with the defaults), trains a run of each for one epoch, and
measures our way, a plain one with PyTorch, pyarrow or NumPy, and the limit: the same bytes written and flushed, or
read, or the products alone. They take turns; printed are medians. Seconds of a process's start are not in them (see
`starts`).
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.waits import clicks, graphs
from benchmarks.waits.measured import measure

HEAD = "| wait | ours | | plain way | x as fast | limit | of the limit |\n|---|---|---|---|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where files of some GB are put (default: a temporary folder)")
    parser.add_argument("--edges", type=int, default=2_000_000, help="of the graph")
    parser.add_argument("--examples", type=int, default=300_000, help="of each day of the log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=("graph", "clicks"), default=("graph", "clicks"))
    parser.add_argument(
        "--rows", nargs="+", default=("",), metavar="TEXT", help="only rows whose name has one of these"
    )
    parser.add_argument("--keep", action="store_true", help="leave what was generated in --folder, and use it again")
    options = parser.parse_args()
    if options.keep and not options.folder:
        parser.error("--keep needs --folder")
    with ExitStack() as stack:
        name = (
            str(options.folder)
            if options.keep
            else stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder))
        )
        found = []
        if "graph" in options.only:
            found += graphs.waits(Path(name), options.edges, stack)
        if "clicks" in options.only:
            found += clicks.waits(Path(name), options.examples, stack)
        print(f"{machine()}\n\n{HEAD}")
        measure([wait for wait in found if any(text in wait.name for text in options.rows)], options.rounds, Path(name))


if __name__ == "__main__":
    main()
