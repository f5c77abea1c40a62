"""Arguments of the commands about configurations and machines: config, topology and nodes."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac config`."""
    parser.add_argument("section", nargs="?", metavar="KEY", help="a key, a section such as training, or nodes.yaml")
    parser.add_argument(
        "--format", choices=("text", "json-schema"), default="text", help="json-schema: for editors (default: text)"
    )


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac topology`."""
    parser.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of the disk tier, or a /dev/DISK; repeatable",
    )
    parser.add_argument("--device", default="auto", help="of the run: auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--trainers", type=int, metavar="N", help="N trainers of a run over nodes here, each with a GPU of its own"
    )
    parser.add_argument(
        "--sysfs", type=Path, default=Path("/sys"), metavar="DIR", help="a copy of another machine's /sys"
    )
    parser.add_argument("--json", action="store_true", help="everything, for programs")


def add_check(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac nodes`."""
    parser.add_argument("action", choices=("check",), help="reach each, compare versions and clocks, measure links")
    described = parser.add_mutually_exclusive_group(required=True)
    described.add_argument("file", type=Path, nargs="?", help="a nodes.yaml, one entry for each node")
    described.add_argument("--local-nodes", type=int, metavar="N", help="N nodes on this machine")
