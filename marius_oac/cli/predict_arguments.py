"""The arguments of `predict`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def _name(text: str) -> str:
    """A name from the command line, decoded as UTF-8 in any locale."""
    return os.fsencode(text).decode("utf-8", "replace")


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Adds those of `predict`, but for those that other commands have, too."""
    parser.add_argument("run", type=Path, help="folder of the run")
    file = "with --data: the file to write, .parquet, .csv or .tsv, or .gz of the texts"
    parser.add_argument("--out", type=Path, metavar="FILE", help=file)
    parser.add_argument("--head", type=_name, help="name of the head, to rank tails")
    parser.add_argument("--relation", type=_name, help="name of the relation")
    parser.add_argument("--tail", type=_name, help="name of the tail, to rank heads")
    parser.add_argument("--node", type=_name, help="name of a node, to rank its classes")
    parser.add_argument("--top", type=int, default=10, help="answers (default: 10)")
    parser.add_argument("--filtered", action="store_true", help="leave known answers out")
