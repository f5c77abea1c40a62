"""The arguments of commands that train on several nodes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from marius_oac.errors import InputError


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Adds those of `train` and `resume`."""
    several = parser.add_mutually_exclusive_group()
    several.add_argument("--nodes", type=Path, metavar="FILE", help="train on the nodes of a nodes.yaml")
    several.add_argument("--local-nodes", type=int, metavar="N", help="train on N nodes on this machine, to try it out")
    several.add_argument("--on", choices=("ray",), help="train on an existing Ray cluster, or else on a local one")
    parser.add_argument(
        "--trainers", metavar="N", help="with --on ray: number of trainers, or a range such as 2..4, as many as fit"
    )
    parser.add_argument(
        "--restarts", type=int, metavar="N", help="with --on ray: maximum number of restarts after a loss (default: 3)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="with --on ray: time until a silent process counts as lost (default: 60)",
    )
    parser.add_argument(
        "--encrypt", action="store_true", help="with --on ray: encrypt rows and their gradients between nodes"
    )
    parser.add_argument("--node", metavar="NAME", help="with --nodes: start only this node, on this machine")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands that would start the nodes, and exit"
    )


def on_ray(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of `--on ray`; empty without it.

    Raises:
        InputError: an option is missing, or does not go with the others.
    """
    given = {"trainers": number_of_trainers(args.trainers), "restarts": args.restarts, "timeout": args.timeout}
    given = {name: value for name, value in given.items() if value is not None}
    if args.encrypt:
        given["encryption"] = True
    if args.on is None:
        for name in given:
            raise InputError("goes with --on ray", "--encrypt" if name == "encryption" else f"--{name}")
        return {}
    for option, value in (("--node", args.node), ("--dry-run", args.dry_run)):
        if value:
            raise InputError("does not go with --on ray", option)
    if args.trainers is None:
        raise InputError("needs --trainers N", "--on ray")
    return given


def number_of_trainers(text: str | None) -> int | tuple[int, int] | None:
    """Reads `4` or `2..4`. Raises InputError for anything else."""
    try:
        numbers = [int(each) for each in text.split("..")] if text is not None else []
    except ValueError:
        numbers = [0] * 3
    if len(numbers) > 2:
        raise InputError(f"must be a number, or a range such as 2..4, not '{text}'", "--trainers")
    return None if not numbers else numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
