"""What a run says while it trains: lines of `metrics.jsonl`, a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from marius_oac.pipeline.runner import BatchResult

LINE_SECONDS = 10.0  # plain lines come no faster than that


@dataclass
class Totals:
    """Sums over batches."""

    batches: int = 0
    examples: int = 0
    lost: int = 0
    refused: int = 0
    replaced: int = 0
    peak_cached_rows: int = 0

    def add(self, result: BatchResult) -> None:
        self.batches += 1
        self.examples += result.examples
        self.lost += result.lost
        self.refused += result.refused
        self.replaced += result.replaced
        self.peak_cached_rows = max(self.peak_cached_rows, result.cached_rows)

    def metrics(self, seconds: float) -> dict[str, Any]:
        return {
            "examples_per_second": self.examples / seconds if seconds > 0 else 0.0,
            "lost_updates": self.lost,
            "refused_rows": self.refused,
            "replaced_rows": self.replaced,
            "cache_rows": self.peak_cached_rows,
        }


class SegmentReport:
    """Counts the results of one segment; writes a line of metrics every `every` batches.

    `add` is called by write workers, one call at a time. The mean loss is summed exactly (`math.fsum`), so it does not
    depend on the order in which batches end.
    """

    def __init__(
        self,
        epoch: int,
        every: int,
        log: Callable[[Mapping[str, Any]], None],
        stage_metrics: Callable[[], Mapping[str, Any]],
        progress: TrainingProgress,
    ):
        self._epoch, self._every, self._log = epoch, every, log
        self._stage_metrics, self._progress = stage_metrics, progress
        self._interval, self._interval_losses, self._since = Totals(), [], time.perf_counter()
        self._last = 0
        self.totals, self.losses = Totals(), []
        self.order: list[tuple[int, int]] = []

    def add(self, result: BatchResult) -> None:
        for totals, losses in ((self.totals, self.losses), (self._interval, self._interval_losses)):
            totals.add(result)
            losses.append(result.loss * result.examples)
        self.order.append((result.timestamp, result.sequence))
        self._last = max(self._last, result.sequence)
        if self._interval.batches == self._every:
            self.flush()

    def flush(self) -> None:
        """Writes what has come since the last line."""
        interval = self._interval
        if not interval.batches:
            return
        now = time.perf_counter()
        metrics = interval.metrics(now - self._since)
        loss = math.fsum(self._interval_losses) / interval.examples
        self._log({"kind": "interval", "epoch": self._epoch, "batch": self._last, "loss": loss}
                  | metrics | dict(self._stage_metrics()))  # fmt: skip
        self._progress.show(self._epoch, interval.batches, loss, metrics["examples_per_second"])
        self._interval, self._interval_losses, self._since = Totals(), [], now

    def computation_order(self) -> list[int]:
        """The batches' numbers in the order in which they were computed."""
        return [sequence for _, sequence in sorted(self.order)]


class TrainingProgress:
    """A bar over all batches of the run on a terminal, a line every ten seconds otherwise; both on standard error."""

    def __init__(self, first: int, last: int):
        self._done, self._last = first, last
        self._next_line = time.monotonic() + LINE_SECONDS
        self._bar = (
            tqdm(total=last, initial=first, unit="batch", dynamic_ncols=True, leave=False)
            if sys.stderr.isatty()
            else None
        )

    def show(self, epoch: int, batches: int, loss: float, rate: float) -> None:
        self._done += batches
        if self._bar is not None:
            self._bar.set_postfix_str(f"epoch {epoch + 1}, loss {loss:.4f}, {rate:,.0f} examples/s", refresh=False)
            self._bar.update(batches)
        elif time.monotonic() >= self._next_line:
            self.say(
                f"epoch {epoch + 1}, batch {self._done:,} of {self._last:,}: loss {loss:.4f}, {rate:,.0f} examples/s"
            )
            self._next_line = time.monotonic() + LINE_SECONDS

    def say(self, line: str) -> None:
        """A line of its own, above the bar where there is one."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
