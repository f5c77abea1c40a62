"""A run in the terminal: what it trains, how far it is, how well, and what its threads do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from marius_oac.errors import InputError, how_to_install
from marius_oac.insight.report.curves import thinned
from marius_oac.insight.report.history import History
from marius_oac.insight.report.learning import drawn_metrics, state, valid, what
from marius_oac.insight.report.parts import number_text
from marius_oac.insight.watch.live import LiveRun
from marius_oac.runtime.console import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_MOST_METRIC_BARS = 24
_MOST_STAGES = 10
_MOST_TEXT = 60


def watch_in_terminal(run: LiveRun, keep: bool) -> None:
    """Shows a run. Where standard output is no terminal, it is written once, at the end. Raises InputError where rich
    is missing, or the run is damaged."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise InputError(f"needs rich: {how_to_install('report')}", "watch") from None
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        live.update(screen(run, console.width), refresh=True)
        while keep or not run.has_ended:
            run.wait()
            live.update(screen(run, console.width), refresh=True)
    if not console.is_terminal:
        console.line()


def screen(run: LiveRun, width: int) -> RenderableType:
    """What the terminal shows of a run as it was last read; `width`: of the terminal, in characters."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    history = run.history
    said: list[RenderableType] = [Text(_plain(what(history))), Text(_plain(_progress(history)))]
    losses = sparkline([line.loss for line in history.intervals], min(_MOST_BARS, width - 34))
    if losses:
        said.append(Text(f"loss {losses}"))
    said += [table for make in (_metrics, _stages) if (table := make(history)) is not None]
    found = history.bound()
    if found:
        said.append(Text(_plain(f"{found.line[:1].upper()}{found.line[1:]}.")))
    if history.modes:
        last = history.modes[-1]
        said.append(Text(_plain(f"Mode {last.mode} after batch {last.batch + 1:,}: {last.reason}")))
    if not run.has_ended:
        age = run.age()
        news = "It has written nothing yet." if age is None else f"It last wrote {age:,.0f} s ago."
        said.append(Text(news, style="dim"))
    return Panel(Group(*said), title=Text(_plain(history.name)), title_align="left")


def _plain(text: str) -> str:
    return escaped(text).replace("`", "")


def _progress(run: History) -> str:
    """How far it is, how fast, and for how long it will go on as fast as in its last epoch."""
    said = [state(run)]
    if run.intervals:
        said.append(f"{run.intervals[-1].examples_per_second:,.0f} examples/s.")
    epochs = getattr(getattr(run.config, "training", None), "epochs", None)
    if not run.summary and run.epochs and isinstance(epochs, int):
        last = run.epochs[-1]
        since = sum(line.seconds for line in run.intervals if line.batch > last.batch)
        left = max(0.0, (epochs - last.epoch - 1) * last.seconds - since)
        said.append(f"Of {epochs:,} epochs; {left:,.0f} s of training to go, without evaluations.")
    return " ".join(said)


def sparkline(values: Sequence[float | None], most: int) -> str:
    """Means of neighbours as bars of eight heights, `most` at most, with the first and the last value; empty where
    fewer than two are numbers."""
    numbers = thinned(values, most)
    if len(numbers) < 2:
        return ""
    low, high = min(numbers), max(numbers)
    steps = [int((each - low) / (high - low) * (len(_BARS) - 1) + 0.5) if high > low else 0 for each in numbers]
    return f"{number_text(numbers[0])} {''.join(_BARS[step] for step in steps)} {number_text(numbers[-1])}"


def _metrics(run: History) -> Table | None:
    names = drawn_metrics([run])
    if not names:
        return None
    rows = []
    for name in names:
        found = [each.values[name] for each in valid(run) if name in each.values]
        rows.append([name, number_text(found[-1]), sparkline(found, _MOST_METRIC_BARS)])
    return _table(["metric", "last", "so far"], rows)


def _stages(run: History) -> Table | None:
    total = run.stage_seconds()
    if not total or not run.seconds:
        return None
    most = sorted(total.items(), key=lambda item: -item[1])[:_MOST_STAGES]
    shown = [name for name in total if name in dict(most)]
    rows = [
        [name, f"{total[name] / run.seconds:.1%}", "█" * min(20, round(20 * total[name] / run.seconds))]
        for name in shown
    ]
    return _table(["stage", "of the time", "busy threads"], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False)
    for number, name in enumerate(header):
        made.add_column(Text(name, style="dim"), justify="right" if number == 1 else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(escaped(cell)[:_MOST_TEXT]) for cell in row))
    return made
