"""`marius-oac watch`: opens a run and shows it until it has ended."""

from __future__ import annotations

import math
import os
import webbrowser
from dataclasses import dataclass
from pathlib import Path

from marius_oac.errors import InputError
from marius_oac.insight.report.page import REPORT, check_target, render, write_page
from marius_oac.insight.report.parts import Report
from marius_oac.insight.watch.live import LiveRun
from marius_oac.insight.watch.screen import watch_in_terminal
from marius_oac.runtime.console import answer, say

NICENESS = 10
"""By which this process gives way to those that train."""


@dataclass(frozen=True)
class Looks:
    """How a run is watched.

    Attributes:
        page: as a page that is written again and again, not in the terminal.
        every: seconds between looks.
        opened: whether the page is opened in the browser.
        keep: whether to go on when the run has ended.
    """

    page: bool = False
    every: float = 2.0
    opened: bool = False
    keep: bool = False


def watch(path: str | Path, looks: Looks) -> None:
    """Shows a run until it has ended; with `keep` until a signal stops it.

    Raises:
        InputError: an option is wrong, a library is missing, or the page can't be written.
        CheckpointError, ConfigError: there is no run, or a damaged one.
    """
    if not (math.isfinite(looks.every) and 0.1 <= looks.every <= 3600):
        raise InputError("must be 0.1 to 3600 seconds", "--every")
    run = LiveRun(Path(path), looks.every)
    os.nice(NICENESS)
    if looks.page:
        _watch_as_page(run, Path(path) / REPORT, looks)
    else:
        watch_in_terminal(run, looks.keep)


def _watch_as_page(run: LiveRun, target: Path, looks: Looks) -> None:
    """Writes the run's report whenever there is something new. The page reloads itself; the last one does not."""
    check_target(target)
    first = True
    while True:
        goes_on = looks.keep or not run.has_ended
        write_page(target, render(Report([run.history], live=looks.every if goes_on else None)))
        if first:
            answer(target)
            if looks.opened:
                webbrowser.open(target.absolute().as_uri())
            first = False
        if not goes_on:
            break
        while not run.wait():
            pass
    say(f"{run.history.name}: done")
