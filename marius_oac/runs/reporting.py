"""Progress of a run: lines of `metrics.jsonl`, a bar on a terminal, plain lines otherwise; whether the loss has
grown out of proportion. Single batches are checked by `models/compute/soundness.py`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from marius_oac.kernels import ahead
from marius_oac.pipeline.setting import STAGES, Setting
from marius_oac.pipeline.stages import BatchResult
from marius_oac.runs.memory.plan import MemoryPlan, peak_rss
from marius_oac.runtime.console import NOTICES, Painted, line_of, say
from marius_oac.runtime.progress import LINE_SECONDS as LINE_SECONDS
from marius_oac.runtime.progress import make_bar

FEW_BATCHES = 10
BAR_SECONDS = 1.0


@dataclass(frozen=True)
class Totals:
    """Sums over batches: of an interval, an epoch or the run so far.

    Attributes:
        loss: sum of the batches' mean losses times their examples.
        seconds: spent training; evaluations and checkpoints are not counted.
        peak_cache_rows: the most rows that the device cache has held.
        stage_seconds: per stage, over all its workers.
        channel_fill: per channel, the sum over batches of how many waited there when the batch had been written.
    """

    batches: int = 0
    examples: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    lost: int = 0
    refused: int = 0
    replaced: int = 0
    peak_cache_rows: int = 0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    channel_fill: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Sequence[BatchResult]) -> Totals:
        """Sums over some batches; exact, so independent of the order in which they ended."""
        return cls(
            batches=len(results),
            examples=sum(result.examples for result in results),
            loss=math.fsum(result.loss * result.examples for result in results),
            lost=sum(result.lost for result in results),
            refused=sum(result.refused for result in results),
            replaced=sum(result.replaced for result in results),
            peak_cache_rows=max((result.cached_rows for result in results), default=0),
        )

    def beside(self, other: Totals) -> Totals:
        """Adds the totals of another process, which has computed other parts of the same batches at the same time."""
        together = replace(self + other, batches=max(self.batches, other.batches))
        return replace(together, seconds=max(self.seconds, other.seconds))

    def __add__(self, other: Totals) -> Totals:
        def joined(name: str) -> Any:
            ours, theirs = getattr(self, name), getattr(other, name)
            if isinstance(ours, Mapping):
                return _added(ours, theirs)
            return max(ours, theirs) if name == "peak_cache_rows" else ours + theirs

        return Totals(**{each.name: joined(each.name) for each in fields(self)})

    def mean_loss(self) -> float | None:
        """Mean loss of an example; None without examples, as one of several trainers may be."""
        return self.loss / self.examples if self.examples else None

    def rate(self) -> float:
        """Examples per second."""
        return self.examples / self.seconds if self.seconds else 0.0

    def metrics(self) -> dict[str, Any]:
        """The values of a line of `metrics.jsonl`."""
        return {
            "loss": self.mean_loss(),
            "seconds": self.seconds,
            "examples_per_second": self.rate(),
            "lost_updates": self.lost,
            "refused_rows": self.refused,
            "replaced_rows": self.replaced,
            "cache_rows": self.peak_cache_rows,
            "stage_seconds": dict(self.stage_seconds),
            "channel_fill": {name: count / self.batches for name, count in self.channel_fill.items()},
        }


def _added(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: ours.get(name, 0) + theirs.get(name, 0) for name in {**ours, **theirs}}


class SegmentReport:
    """Collects the results of one segment of an epoch; writes a line of metrics for every `every` batches.

    An interval holds the batches computed as number k * every to (k + 1) * every - 1 of the run, whatever the order in
    which they were written, so that its loss is that of any other run with the same bits; the segment's first batch,
    `first`, and its end may cut one short. `add` is called by write workers, one call at a time. `position` maps a
    batch of this process to one of the run; they differ if batches are dispatched.
    """

    def __init__(
        self,
        first: int,
        epoch: int,
        every: int,
        log: Callable[[Mapping[str, Any]], None],
        stage_seconds: Callable[[], Mapping[str, float]],
        channel_fill: Callable[[], Mapping[str, int]],
        progress: TrainingProgress,
        position: Callable[[int], int] = lambda number: number,
    ):
        self._position = position
        self._epoch, self._every, self._log, self._progress = epoch, every, log, progress
        self._stage_seconds, self._channel_fill = stage_seconds, channel_fill
        self._next, self._filled = first, 0
        self._since, self._compiled = time.perf_counter(), ahead.seconds_here()
        self._intervals: dict[int, list[BatchResult]] = {}
        self._fill: dict[str, int] = {}
        self._order: list[tuple[int, int, float]] = []
        self.totals = Totals()

    def add(self, result: BatchResult) -> None:
        """Adds the result of a batch; writes the intervals that it completes."""
        self._intervals.setdefault(result.timestamp // self._every, []).append(result)
        self._order.append((result.timestamp, result.batch_index, result.loss))
        self._fill = _added(self._fill, self._channel_fill())
        self._filled += 1
        while len(self._intervals.get(self._next // self._every, ())) == self._every - self._next % self._every:
            self._end_interval()
        if self._intervals and self._progress.due:  # a few large batches take long to fill an interval
            results = [result for several in self._intervals.values() for result in several]
            totals = replace(Totals.of(results), seconds=self._seconds())
            self._progress.show(self._epoch, totals, self._position(self._next + len(results)))

    def flush(self) -> None:
        """Writes the interval that the segment's end cuts short."""
        if self._intervals:
            self._end_interval()

    def _end_interval(self) -> None:
        results = self._intervals.pop(self._next // self._every)
        self._next += len(results)
        totals = replace(
            Totals.of(results), seconds=self._seconds(), stage_seconds=self._stage_seconds(),
            channel_fill={name: count * len(results) / self._filled for name, count in self._fill.items()},
        )  # fmt: skip
        self._fill, self._filled = {}, 0
        self._since, self._compiled = time.perf_counter(), ahead.seconds_here()
        self.totals += totals
        position = self._position(self._next)
        self._log({"kind": "interval", "epoch": self._epoch, "batch": position - 1} | totals.metrics())
        self._progress.show(self._epoch, totals, position)

    def _seconds(self) -> float:
        """Seconds since the interval began, without those in which kernels were compiled."""
        return max(0.0, time.perf_counter() - self._since - (ahead.seconds_here() - self._compiled))

    def computation_order(self) -> list[int]:
        """The batches' numbers in the order in which they were computed."""
        return [batch_index for _, batch_index, _ in sorted(self._order)]

    def first_loss(self) -> float | None:
        """The median of the first few batches computed, of those that there are; None without any."""
        return self._median(sorted(self._order)[:FEW_BATCHES])

    def last_loss(self) -> float | None:
        """Likewise of the last ones."""
        return self._median(sorted(self._order)[-FEW_BATCHES:])

    @staticmethod
    def _median(batches: Sequence[tuple[int, int, float]]) -> float | None:
        return statistics.median(loss for *_, loss in batches) if batches else None


_BAR = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"
"""For tqdm: its own format leaves a bar of one character in 80 columns."""
_MANY = 100_000
"""Batches from which on their number is rounded, as 1.23M."""


class TrainingProgress:
    """A bar over all batches of the run on a terminal, a line every ten seconds otherwise; both on standard error.

    With `shown` False it prints nothing; another process does.
    """

    def __init__(self, first: int, last: int, shown: bool = True):
        self._done, self._last, self._shown = first, last, shown
        self._compiled = ahead.seconds_here()
        self._next_line = time.monotonic() + LINE_SECONDS
        form = {"desc": "training", "bar_format": _BAR, "unit_scale": last >= _MANY, "smoothing": 0}
        self._bar = make_bar("batch", last, initial=first, **form) if shown else None

    @property
    def due(self) -> bool:
        """Whether it is time for another line."""
        return time.monotonic() >= self._next_line

    def show(self, epoch: int, totals: Totals, position: int) -> None:
        """Shows the totals of the last batches, up to `position`."""
        gone, self._done, due = position - self._done, position, self.due
        loss = f"loss {totals.mean_loss() or 0:.4f}, {totals.rate():,.0f}"
        compiled, self._compiled = ahead.seconds_here() - self._compiled, ahead.seconds_here()
        if self._bar is not None:
            self._bar.start_t += compiled  # what is left of the run compiles nothing
            self._bar.set_description_str(f"epoch {epoch + 1}", refresh=False)
            self._bar.set_postfix_str(f"{loss}/s", refresh=False)
            self._bar.update(gone)
        elif due:
            self.say(f"epoch {epoch + 1}, batch {self._done:,} of {self._last:,}: {loss} examples/s")
        if due:
            self._next_line = time.monotonic() + (LINE_SECONDS if self._bar is None else BAR_SECONDS)

    def say(self, *pieces: str | Painted) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line_of(*pieces), file=NOTICES)
        elif self._shown:
            say(*pieces)

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


LARGEST_GROWTH = 1e6
"""The largest loss of the last batches, relative to that of the first ones, or to 1 if that is more."""


def first_loss(known: float | None, heard: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Returns a run's initial loss: `known`, or the largest of the processes' first batches."""
    return max((begun for begun, _ in heard if begun is not None), default=None) if known is None else known


def grown_loss(first: float | None, heard: Sequence[tuple[float | None, float | None]]) -> str | None:
    """Returns what is wrong with the loss of the last batches of a segment; None: nothing.

    Medians, as one batch may hold an outlier. A model that predicts a constant has a loss near 1, and so has an
    untrained one; a model of the user's, or columns that are not scaled, may begin with more. Steps that are too large
    may well make it ten thousand times that for a while, and training recovers as the optimizer's steps shrink; from a
    million on it is the steps' noise.

    Args:
        first: median loss of the run's first few batches; None: unknown.
        heard: of each process the median loss of the segment's first and last few batches; None: it had none.
    """
    last = max((ended for _, ended in heard if ended is not None), default=0.0)
    if first is None or last <= LARGEST_GROWTH * max(1.0, first):
        return None
    return f"the loss is {last:.3g}, and began with {first:.3g}"


def setting_of(setting: Setting) -> dict[str, int]:
    """Batches in flight and threads of a process, by name: of two runs with the same bits they may differ."""
    threads = {f"machine.workers.{stage}": setting.threads(stage) for stage in STAGES}
    return {"machine.in_flight": setting.window} | threads


def memory_of(plan: MemoryPlan | None) -> dict[str, int]:
    """Memory of this process in bytes, by name: the most that it has held, and what was planned."""
    planned = {f"machine.planned_bytes.{place}": plan.total(place) for place in plan.places} if plan else {}
    return {"memory.peak_rss_bytes": peak_rss()} | planned
