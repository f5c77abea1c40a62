"""Figures of a search over settings: results by trial, by epoch and by each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from marius_oac.config.space import Choices, Range, Value
from marius_oac.runs.report.drawing import colour, draw, tidy
from marius_oac.runs.report.drawing import short as short_number
from marius_oac.runs.report.page import printable
from marius_oac.runs.report.parts import Figure, Table, number_text
from marius_oac.training.tune.trials import Trial, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DRAWN = 300
"""Trials in a figure: of more, each n-th and the best one."""
_COMPLETE, _STOPPED, _BEST = colour("run", 0), colour("run", 1), colour("run", 2)
_LONG = 22  # characters of a value beside an axis


def drawn(trials: Sequence[Trial], best: Trial) -> list[Trial]:
    """Those with a result at any epoch, as many as a figure takes."""
    some = [trial for trial in trials if result(trial) is not None]
    step = -(-len(some) // MOST_DRAWN)
    return [trial for place, trial in enumerate(some) if place % step == 0 or trial.number == best.number]


def result(trial: Trial) -> float | None:
    """Of a complete trial its result, of another one its last evaluation."""
    return trial.value if trial.value is not None else trial.curve[-1][1] if trial.curve else None


def by_trial(trials: Sequence[Trial], best: Trial, metric: str) -> Figure:
    """Results in the order of the trials, and the best so far."""
    complete = [trial for trial in trials if trial.value is not None]
    reached = list[tuple[int, float]]()  # of each better one than before
    for trial in complete:
        if trial.value is not None and (not reached or trial.value > reached[-1][1]):
            reached.append((trial.number, trial.value))
    some = drawn(trials, best)

    def paint(axes: Axes, narrow: bool) -> None:
        _points(axes, [(trial.number, trial) for trial in some], best)
        ends = [*reached, (trials[-1].number, reached[-1][1])]
        axes.step(*zip(*ends, strict=True), where="post", color=_BEST, linewidth=1.4)
        tidy(axes, "trial", narrow, metric)

    rows = [[str(number), number_text(value)] for number, value in reached]
    words = (
        f"Dots are complete trials, crosses those that were stopped early, at their last evaluation; the line is the "
        f"best so far: trial {best.number} has {number_text(best.value)} after {len(reached)} improvements."
    )
    table = Table("Improvements", ["trial", metric], rows, open=False, series=True)
    return Figure("Results by trial", words + _left_out(some, trials), {"": draw("trials", paint, 300)}, table)


def by_epoch(trials: Sequence[Trial], best: Trial, metric: str) -> Figure | None:
    """Validation of each trial while it trained; None where none was evaluated more than once."""
    some = [trial for trial in drawn(trials, best) if trial.curve]
    if all(len(trial.curve) == 1 for trial in some):
        return None

    def paint(axes: Axes, narrow: bool) -> None:
        for trial in some:
            paint, dashes = (_STOPPED, (0, (4, 2))) if trial.state == "pruned" else (_COMPLETE, "solid")
            axes.plot(
                *zip(*trial.curve, strict=True), color=paint, linewidth=0.8, alpha=0.6, linestyle=dashes,
                marker="x" if len(trial.curve) == 1 else None, markersize=4,
            )  # fmt: skip
        if best.curve:
            axes.plot(*zip(*best.curve, strict=True), color=_BEST, linewidth=2.4)
        tidy(axes, "epoch", narrow, metric)

    rows = [[f"{epoch:,}", number_text(value)] for epoch, value in best.curve]
    words = (
        f"A line for each trial, dashed where it was stopped early, and a cross where it was evaluated once; the thick "
        f"one is the best, trial {best.number}."
    )
    table = Table(f"Trial {best.number}", ["epoch", metric], rows, open=False, series=True)
    return Figure("Validation by epoch", words, {"": draw("epochs", paint, 300)}, table)


def by_setting(
    number: int, key: str, values: Choices | Range, trials: Sequence[Trial], best: Trial, metric: str
) -> Figure:
    """Results by the values of one key, the `number`-th of the page."""
    some = [trial for trial in drawn(trials, best) if key in trial.values]
    names = [] if isinstance(values, Range) else [short(each) for each in values.choices]
    points = [(_place(trial.values[key], values), trial) for trial in some]

    def paint(axes: Axes, narrow: bool) -> None:
        _points(axes, points, best)
        tidy(axes, printable(key), narrow, metric)
        if isinstance(values, Range):
            _numbers(axes, values, narrow)
        else:
            axes.set_xticks(range(len(names)), [_cut(name, (50 if narrow else 100) // len(names)) for name in names])
            axes.set_xlim(-0.5, len(names) - 0.5)

    words = f"Each trial's {metric} by its `{key}`; the best has {short(best.values.get(key))}."
    table = Table(
        f"By {key}", [key, "trials", f"best {metric}", f"mean {metric}"], _rows(key, values, trials), open=False
    )
    return Figure(key, words + _left_out(some, trials), {"": draw(f"setting-{number}", paint, 260)}, table)


def importance_figure(shares: Mapping[str, float]) -> Figure:
    """How much hangs on each key."""
    names, values = list(shares), list(shares.values())
    shown = [_cut(name, _LONG) for name in names]

    def paint(axes: Axes, narrow: bool) -> None:
        axes.barh(range(len(values)), values, height=0.7, color=colour("stage", 0))
        tidy(axes, "importance", narrow)
        axes.set_yticks(range(len(names)), shown)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.grid(visible=False)
        axes.grid(visible=True, axis="x")

    words = (
        "How far the values of a key among the best trials differ from those among all complete ones (PED-ANOVA), as "
        "shares of one. A key whose range is too narrow to matter has little, however much it matters elsewhere."
    )
    rows = [[name, f"{value:.1%}"] for name, value in shares.items()]
    drawing = draw("importance", paint, 60 + 24 * len(names), 24 + 6 * max(map(len, shown)))
    return Figure(
        "Which settings matter", words, {"": drawing}, Table("Importance", ["key", "share"], rows, open=False)
    )


def _points(axes: Axes, points: Sequence[tuple[float, Trial]], best: Trial) -> None:
    """Dots of complete trials, crosses of others, a ring round the best."""
    for complete, marker, paint in ((True, "o", _COMPLETE), (False, "x", _STOPPED)):
        found = [(place, result(trial)) for place, trial in points if (trial.value is not None) == complete]
        if found:
            axes.plot(*zip(*found, strict=True), linestyle="none", marker=marker, markersize=4.5, color=paint)
    ring = [(place, trial.value) for place, trial in points if trial.number == best.number]
    axes.plot(*zip(*ring, strict=True), linestyle="none", marker="o", markersize=9, fillstyle="none", color=_BEST)


def _place(value: Value | None, values: Choices | Range) -> float:
    """Where a value stands on its axis; choices in the order of the space."""
    if isinstance(values, Range):
        return float(value) if isinstance(value, int | float) else float(values.low)
    return next((place for place, each in enumerate(values.choices) if _same(each, value)), len(values.choices))


def _same(one: Value | None, other: Value | None) -> bool:
    return type(one) is type(other) and one == other


def _rows(key: str, values: Choices | Range, trials: Sequence[Trial]) -> list[list[str]]:
    """Complete trials by value: each choice, or of a range ten parts with as many trials each."""
    found = sorted(
        (
            (_place(trial.values[key], values), trial)
            for trial in trials
            if trial.value is not None and key in trial.values
        ),
        key=lambda each: (each[0], each[1].number),
    )
    if isinstance(values, Range):
        size = max(-(-len(found) // 10), 1)
        parts = [found[place : place + size] for place in range(0, len(found), size)]
    else:
        parts = [[each for each in found if each[0] == place] for place in sorted({place for place, _ in found})]
    rows = []
    for part in parts:
        ends = list(dict.fromkeys(short(each.values[key]) for each in (part[0][1], part[-1][1])))
        results = [trial.value for _, trial in part if trial.value is not None]
        rows.append([" to ".join(ends), f"{len(part):,}", number_text(max(results)),
                     number_text(sum(results) / len(results))])  # fmt: skip
    return rows


def _numbers(axes: Axes, values: Range, narrow: bool) -> None:
    """The horizontal axis of a range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if values.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if narrow else (1.0, 3.0), numticks=5 if narrow else 9))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif values.integers:
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 8, integer=True))


def _cut(name: str, most: int) -> str:
    """A name of at most so many characters, but 4."""
    name, most = printable(name), max(most, 4)
    return name if len(name) <= most else f"...{name[-most + 3 :]}"


def _left_out(some: Sequence[Trial], trials: Sequence[Trial]) -> str:
    count = sum(result(trial) is not None for trial in trials)
    return f" {len(some):,} of {count:,} trials are drawn." if len(some) < count else ""
