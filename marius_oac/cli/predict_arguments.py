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
    parser.add_argument("run", type=Path, help="run folder")
    file = "with --data, required: output file (.parquet, .csv, .tsv, .csv.gz or .tsv.gz)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=file)
    parser.add_argument("--head", type=_name, help="head of the edge, to predict tails")
    parser.add_argument("--relation", type=_name, help="relation of the edge")
    parser.add_argument("--tail", type=_name, help="tail of the edge, to predict heads")
    parser.add_argument("--node", type=_name, help="node to classify")
    parser.add_argument("--top", type=int, default=10, help="number of answers (default: 10)")
    parser.add_argument("--filtered", action="store_true", help="exclude known answers")
