"""`marius-oac watch`: opens a run and shows it until it has ended."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from marius_oac.errors import InputError
from marius_oac.runs.watch.browser import watch_in_browser
from marius_oac.runs.watch.live import LiveRun
from marius_oac.runs.watch.screen import watch_in_terminal

NICENESS = 10
"""By which this process gives way to those that train."""


@dataclass(frozen=True)
class Looks:
    """How a run is watched.

    Attributes:
        text: in the terminal, not in the browser.
        every: seconds between looks.
        port: of the page; 0: any that is free.
        opened: whether the browser is opened at once.
        keep: whether to go on when the run has ended.
    """

    text: bool = False
    every: float = 10.0
    port: int = 0
    opened: bool = False
    keep: bool = False


def watch(path: str | Path, looks: Looks) -> None:
    """Shows a run until it has ended.

    Raises:
        InputError: an option is wrong, a library is missing, or the port can't be had.
        CheckpointError, ConfigError: there is no run, or a damaged one.
    """
    if not (math.isfinite(looks.every) and 0.1 <= looks.every <= 3600):
        raise InputError("must be 0.1 to 3600 seconds", "--every")
    if not 0 <= looks.port < 1 << 16:
        raise InputError("must be a port, 0 to 65535", "--port")
    run = LiveRun(Path(path))
    os.nice(NICENESS)
    if looks.text:
        watch_in_terminal(run, looks.every, looks.keep)
    else:
        watch_in_browser(run, looks.every, looks.port, looks.opened, looks.keep)
