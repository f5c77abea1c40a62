"""A part of the measurements: its budget of time, its rows, and the tables of the page that show them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.gpu.place import Place
from benchmarks.gpu.results import Results


@dataclass(frozen=True)
class Table:
    """How the page shows the rows of one name.

    Attributes:
        name: of the rows. title, about: what the page says above them; `about` ends with a full stop.
        columns: heading by key of `where` or `found`, in the order of the page.
    """

    name: str
    title: str
    about: str
    columns: Mapping[str, str]


class Part:
    """What a part's module gets to measure with.

    Guarantees: a row is in the file as soon as it is measured. A measurement that fails is an `error` line, and the
    next one begins. When the budget is used up no measurement begins; each that is left out is a `missing` line.
    """

    def __init__(self, place: Place, results: Results, out: Path, seconds: float, data: Path | None):
        """`out`: where logs go. `data`: the folder of data sets, if there is one."""
        self.place, self.out, self.data = place, out, data
        self.failed = self.rows = 0
        self._results, self._end = results, time.monotonic() + seconds

    def left(self) -> float:
        """Seconds of the budget."""
        return self._end - time.monotonic()

    def measure(
        self, name: str, where: Mapping[str, Any], run: Callable[[], Mapping[str, Any]], needs: float = 0.0
    ) -> Mapping[str, Any] | None:
        """Adds a row of what `run()` returns, which it returns, too; None where there is no row.

        Where it says that it is not `right`, the part has failed, too.

        `needs`: seconds that must be left for the measurement to begin.
        """
        if self.left() <= needs:
            self.miss(
                name,
                where,
                f"out of time: {max(0, self.left()):.0f} s were left" + f", {needs:.0f} needed" * bool(needs),
            )
            return None
        began = time.monotonic()
        try:
            found = dict(run())
            if not found:
                raise RuntimeError("nothing was found")
        except Exception as error:  # the next measurement may do better, and this machine is at hand for minutes
            self.fail(name, where, error)
            return None
        self.rows += 1
        self.failed += not found.get("right", True)
        self._results.add("row", name=name, where=dict(where), found=found, seconds=time.monotonic() - began)
        print(f"  {name}: {told(where)}: {told(found)}", flush=True)
        return found

    def miss(self, name: str, where: Mapping[str, Any], why: str) -> None:
        """Says that a measurement is not made."""
        self._results.add("missing", name=name, where=dict(where), why=why)
        print(f"  {name}: {told(where)}: NOT MEASURED: {why}", flush=True)

    def fail(self, name: str, where: Mapping[str, Any], error: BaseException) -> None:
        """Says that a measurement failed."""
        self.failed += 1
        lines = traceback.format_exception(error)
        self._results.add("error", name=name, where=dict(where), error=repr(error), traceback="".join(lines)[-4000:])
        print(f"  {name}: {told(where)}: FAILED: {error!r}\n{''.join(lines)}", flush=True)


def told(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {shown(value)}" for key, value in fields.items())


def shown(value: Any) -> str:
    """A value as a page has it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def run_part(module: ModuleType, place: Place, results: Results, out: Path, data: Path | None) -> Part:
    """Runs a part to its end, or to that of its budget."""
    # A rehearsal is not about time: a machine may be busy, and compiles all kernels at first.
    seconds, began = place.pick(module.SECONDS, 900), time.monotonic()
    part = Part(place, results, out, seconds, data)
    with place.copying():
        try:
            module.run(part)
        except Exception as error:
            part.fail("the part itself", {}, error)
    results.add("end", seconds=time.monotonic() - began, rows=part.rows, failed=part.failed)
    return part
