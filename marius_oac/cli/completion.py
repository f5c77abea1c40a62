"""`marius-oac completion`: the script by which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from pathlib import Path

from marius_oac.errors import InputError, how_to_install
from marius_oac.runtime.console import answer


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="shell that reads the script")


def print_completion(parser: argparse.ArgumentParser, shell: str) -> None:
    """Writes the script for all commands of the parser to standard output; arguments that name files complete as such.

    Raises:
        InputError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise InputError(f"needs shtab: {how_to_install('completion')}", "completion") from None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                for each in command._actions:
                    if each.type is Path or each.metavar in ("FILE", "DIR") or each.dest == "source":
                        each.complete = shtab.FILE
    answer(shtab.complete(parser, shell=shell))
