"""Progress of anything that may take longer than two seconds: a bar on a terminal, plain lines otherwise. All bars of
this program are made here; `runs/reporting.py` shows one for training."""

from __future__ import annotations

import math
import time
from typing import Any

from tqdm import tqdm

from marius_oac.runtime.console import NOTICES, escaped, is_terminal, say, shows_colours
from marius_oac.runtime.standstill import Activity

FIRST_SECONDS = 2.0  # work that ends sooner is not shown
LINE_SECONDS = 10.0  # plain lines come no faster than that


def make_bar(unit: str, total: int | None, **options: Any) -> tqdm | None:
    """A bar on standard error where that is a terminal; None otherwise. `options` are those of tqdm."""
    if not is_terminal():
        return None
    colour = "green" if shows_colours() else None
    if "desc" in options:
        options["desc"] = escaped(options["desc"])
    return tqdm(unit=unit, total=total, file=NOTICES, dynamic_ncols=True, leave=False, colour=colour, **options)


class Progress(Activity):
    """Counts finished units of work and shows them on standard error. Use it as a context manager; in its
    block each call of `add` says that the work gets on (`standstill`).

    Args:
        what: the work ("reading train.tsv").
        unit: the unit ("edges", "B").
        total: the number of units, where it is known.
        shown: whether to show it; of several processes one does.
    """

    def __init__(self, what: str, unit: str, total: int | None = None, shown: bool = True) -> None:
        super().__init__(what)
        self._unit, self._total, self._done = unit, total, 0
        self._next_line = time.monotonic() + FIRST_SECONDS if shown else math.inf
        self._said = False
        bar = {"desc": what, "unit_scale": True, "delay": FIRST_SECONDS}
        self._bar = make_bar(f" {unit}", total, **bar) if shown else None

    def add(self, amount: int) -> None:
        """Counts `amount` more units as done."""
        self._done += amount
        self.moved()
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() >= self._next_line:
            self._say("")
            self._next_line = time.monotonic() + LINE_SECONDS

    def _say(self, end: str) -> None:
        say(f"{self.what}: {self._counted()}{end}")
        self._said = True

    def _counted(self) -> str:
        return f"{self._done:,}{f' of {self._total:,}' if self._total else ''} {self._unit}"

    def told(self) -> str:
        """See `Activity.told`."""
        return f"{self.what} stands at {self._counted()}"

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if self._bar is not None:
            self._bar.close()
        elif self._said and error is None:
            self._say(", done")
