"""Arguments of the commands about configurations and machines: config and nodes."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac config`."""
    parser.add_argument(
        "section", nargs="?", metavar="KEY", help="a key, a section such as training, or nodes.yaml (default: all keys)"
    )
    parser.add_argument(
        "--format",
        choices=("text", "json-schema"),
        default="text",
        help="output format; json-schema is for editors (default: text)",
    )


def add_check(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac nodes`."""
    parser.add_argument(
        "action", choices=("check",), help="connect to each node, compare versions and clocks, measure links"
    )
    described = parser.add_mutually_exclusive_group(required=True)
    described.add_argument("file", type=Path, nargs="?", help="nodes.yaml with one entry per node")
    described.add_argument("--local-nodes", type=int, metavar="N", help="check N nodes on this machine")
