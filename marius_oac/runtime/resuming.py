"""The command that goes on with a run, as messages offer it: with the options that this run was started with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import check_place

_options: tuple[str, ...] = ()


@contextmanager
def started_with(options: Sequence[str]) -> Iterator[None]:
    """Within the block, in all threads, the command has these options, such as `--local-nodes 2`."""
    global _options
    before, _options = _options, tuple(options)
    try:
        yield
    finally:
        _options = before


def resume_command(path: object) -> str:
    """The command that goes on with the run in the folder `path`, quoted for a shell."""
    return shlex.join(["marius-oac", "resume", str(path), *_options])


def check_new_run(path: Path) -> None:
    """Raises InputError if the folder of a new run exists, or can't be where it is to be. The present folder is
    recorded as well, since paths in the configuration begin there."""
    check_place(path)
    check_place(os.getcwd())
    if os.path.lexists(path):
        raise InputError(f"exists already; choose another --out, or go on with: {resume_command(path)}", path)
