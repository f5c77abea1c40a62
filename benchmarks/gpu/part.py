"""A part of the measurements: its budget of time, its rows, and the tables of the page that show them."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from benchmarks.gpu.place import Place
from benchmarks.gpu.results import Results

T = TypeVar("T")


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


class Missing(Exception):
    """Raised by a measurement that can't be made here, or now; says why."""


class Part:
    """What a part's module gets to measure with.

    A module's `run(part)` is called twice: first to note what it will measure, then to measure. So it makes nothing
    itself that takes time, but where a measurement asks for it (`once`).

    Guarantees: a row is in the file as soon as it is measured. A measurement that fails is an `error` line, and the
    next one begins. When the budget is used up no measurement begins; each that is left out is a `missing` line.
    """

    def __init__(
        self,
        place: Place,
        results: Results,
        out: Path,
        seconds: float,
        data: Path | None = None,
        only: Sequence[str] = (),
    ):
        """`out`: where logs go. `data`: the folder of data sets, if there is one. `only`: measurements of whose name
        and settings one of these is a part; none: all."""
        self.place, self.out, self.data = place, out, data
        self.failed = self.rows = 0
        self._results, self._end, self._only = results, time.monotonic() + seconds, only
        self._plan: list[tuple[str, dict[str, Any]]] | None = None

    def left(self) -> float:
        """Seconds of the budget."""
        return self._end - time.monotonic()

    def plan(self, module: ModuleType) -> list[tuple[str, dict[str, Any]]]:
        """Name and settings of what the module will measure."""
        self._plan = found = []
        try:
            module.run(self)
        finally:
            self._plan = None
        return found

    def measure(
        self, name: str, where: Mapping[str, Any], run: Callable[[], Mapping[str, Any]], needs: float = 0.0
    ) -> None:
        """Adds a row of what `run()` returns. Where that says that it is not `right`, the part has failed, too.

        `needs`: seconds that must be left for the measurement to begin.
        """
        text = f"{name}: {told(where)}"
        if self._only and not any(each in text for each in self._only):
            return
        if self._plan is not None:
            self._plan.append((name, dict(where)))
            return
        if self.left() <= needs:
            asked = f", {needs:.0f} needed" * bool(needs)
            return self._miss(name, where, f"out of time: {max(0, self.left()):.0f} s were left{asked}")
        began = time.monotonic()
        try:
            found = dict(run())
            if not found:
                raise RuntimeError("nothing was found")
        except Missing as why:
            return self._miss(name, where, str(why))
        except Exception as error:  # the next measurement may do better, and this machine is at hand for minutes
            return self.fail(name, where, error)
        self.rows += 1
        self.failed += not found.get("right", True)
        self._results.add("row", name=name, where=dict(where), found=found, seconds=time.monotonic() - began)
        print(f"  {text}: {told(found)}", flush=True)

    def _miss(self, name: str, where: Mapping[str, Any], why: str) -> None:
        self._results.add("missing", name=name, where=dict(where), why=why)
        print(f"  {name}: {told(where)}: NOT MEASURED: {why}", flush=True)

    def fail(self, name: str, where: Mapping[str, Any], error: BaseException) -> None:
        """Says that a measurement failed."""
        self.failed += 1
        lines = traceback.format_exception(error)
        self._results.add("error", name=name, where=dict(where), error=repr(error), traceback="".join(lines)[-4000:])
        print(f"  {name}: {told(where)}: FAILED: {error!r}\n{''.join(lines)}", flush=True)


@contextmanager
def once(make: Callable[[], AbstractContextManager[T]]) -> Iterator[Callable[[], T]]:
    """What several measurements need: made when the first one asks for it, closed at the end."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(make()))


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


def run_part(module: ModuleType, part: Part, results: Results) -> None:
    """Runs a part to its end, or to that of its budget."""
    began = time.monotonic()
    with part.place.copying():
        try:
            results.add("plan", measurements=part.plan(module))
            module.run(part)
        except Exception as error:
            part.fail("the part itself", {}, error)
    results.add("end", seconds=time.monotonic() - began, rows=part.rows, failed=part.failed)
