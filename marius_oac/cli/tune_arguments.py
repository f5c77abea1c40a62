"""Arguments of `marius-oac tune`."""

from __future__ import annotations

import argparse
from pathlib import Path


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError(f"must be between 1 and 10,000, not {number}")
    return number


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Adds them, but `--set`."""
    parser.add_argument("config", type=Path, help="configuration file (YAML) that all trials share")
    parser.add_argument(
        "--space", type=Path, required=True,
        help="search space (YAML): keys of the configuration and their possible values (docs/tune.md)"
    )  # fmt: skip
    parser.add_argument(
        "--trials", type=_count, default=50, help="total number of trials, including existing ones (default: 50)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder of the search (default: tune/NAME, by the name of the configuration)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the runs of all trials, not only of the best one")
