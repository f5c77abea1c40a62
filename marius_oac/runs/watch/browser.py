"""A run in the browser: the page of its report, made again when it is asked for and there is something new."""

from __future__ import annotations

import html
import math
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from marius_oac.runs.report.curves import AXES
from marius_oac.runs.report.drawing import check_matplotlib
from marius_oac.runs.report.page import render
from marius_oac.runs.report.parts import Report
from marius_oac.runs.watch.live import LiveRun
from marius_oac.runs.watch.server import PageServer
from marius_oac.runtime.console import answer, say
from marius_oac.runtime.files.scratch import scratch_folder

TIMES = 20
"""A page is asked for again after this many times the processor time that it took to make, at least."""


class LivePages:
    """The pages of a run by horizontal axis, each drawn on that one alone.

    Args:
        every: seconds after which the browser asks again.
    """

    def __init__(self, run: LiveRun, every: float):
        self._run, self._every = run, every
        self._cost = 0.0
        self._made: dict[str, tuple[int, str]] = {}
        self.shown_the_end = False

    def page(self, name: str) -> tuple[str, float | None] | None:
        """The page of an axis, by default the first; see `server.Page`."""
        axis = name or next(iter(AXES))
        if axis not in AXES:
            return None
        self._run.read()
        if self._made.get(axis, (-1, ""))[0] != self._run.version:
            before = time.process_time()
            text = render(Report([self._run.history], axes={axis: AXES[axis]}, live=self._every))
            self._made[axis] = self._run.version, text
            self._cost = time.process_time() - before
        self.shown_the_end = self._run.has_ended
        return self._made[axis][1], None if self._run.has_ended else self._pause

    @property
    def _pause(self) -> float:
        return math.ceil(max(self._every, TIMES * self._cost))

    @property
    def patience(self) -> float:
        """Seconds within which a browser that shows the page has asked again."""
        return 2 * self._pause + 1


def watch_in_browser(run: LiveRun, every: float, port: int, opened: bool, keep: bool) -> None:
    """Serves the page of a run until the run has ended and its last page was shown, or nobody looks; with `keep` until
    a signal stops it. Raises InputError where a library is missing, the port can't be had, or the run is damaged."""
    check_matplotlib()
    pages = LivePages(run, every)
    server = PageServer(pages.page, port)
    ended: float | None = None
    with ExitStack() as stack:

        def ready() -> None:
            answer(server.address)
            if opened:
                webbrowser.open(stack.enter_context(_leading_to(server.address)).as_uri())

        def done() -> bool:
            nonlocal ended
            run.read()
            if keep or not run.has_ended:
                ended = None
                return False
            ended = ended or time.monotonic()
            return pages.shown_the_end or time.monotonic() - ended > pages.patience

        server.serve(ready, done, min(every, 1.0))
    say(f"{run.history.name}: done")


@contextmanager
def _leading_to(address: str) -> Iterator[Path]:
    """A page that only this user may read and that leads to an address: others see the arguments of a browser, so the
    address must not be among them."""
    with scratch_folder() as folder:
        page = folder / "watch.html"
        page.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={html.escape(address)}">')
        yield page
