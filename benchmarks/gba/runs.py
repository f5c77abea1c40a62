"""A day of training in a mode: the package's dealer and aggregators between workers on a virtual clock and a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.gba.clock import Crew, LoadProfile
from benchmarks.gba.data import Days, frappe, generated
from benchmarks.gba.model import WIDTH, Gradient, Model
from marius_oac.nodes.gba.aggregator import DenseAggregator, RowAggregator
from marius_oac.nodes.gba.counts import add_counts
from marius_oac.nodes.gba.dispatcher import Dispatcher
from marius_oac.nodes.gba.modes import Kind, Mode, RowsOver, make_mode

MODES: tuple[Kind, ...] = ("sync", "gba", "hop-bw", "hop-bs", "bsp", "async")
WORKERS = 16  # of all modes but sync, which has half as many with twice the local batch
IOTA, B1 = 3, 2  # gba's threshold and hop-bs' bound, as in Table 5.1
QUARTER = WORKERS // 4  # bsp's b2 and hop-bw's b3, as 100 of the 400 workers of the paper's Private task


@dataclass(frozen=True)
class Setting:
    """A mode, how many workers it has, and how many examples each of them takes at once."""

    mode: Mode
    workers: int
    local_batch: int

    @classmethod
    def of(cls, kind: Kind, workers: int, local_batch: int, global_batch: int, rows: RowsOver = "holders") -> Setting:
        rules = {"threshold": IOTA, "rows_over": rows}
        mode = make_mode(kind, workers, global_batch, local_batch, b1=B1, b2=QUARTER, b3=QUARTER, **rules)
        return cls(mode, workers, local_batch)


def setting(kind: Kind, global_batch: int, rows: RowsOver = "holders") -> Setting:
    """A mode in the proportions of Table 5.1: sync and gba have the same global batch, bsp, hop-bs and hop-bw have
    sync's local batch, and async has a quarter of it."""
    least = global_batch // WORKERS
    if kind == "sync":
        return Setting.of(kind, WORKERS // 2, 2 * least, global_batch, rows)
    local = {"gba": least, "async": least // 2}.get(kind, 2 * least)
    return Setting.of(kind, WORKERS, local, global_batch, rows)


@dataclass
class Outcome:
    """What came of some days; adds up.

    Attributes:
        seconds: virtual. examples: of the gradients that arrived.
        dense, rows: the aggregators' metrics; of rows, one gradient of one row counts as one.
    """

    seconds: float
    examples: int
    dense: dict[str, int]
    rows: dict[str, int]

    def __add__(self, other: Outcome) -> Outcome:
        dense, rows = add_counts(self.dense, other.dense), add_counts(self.rows, other.rows)
        return Outcome(self.seconds + other.seconds, self.examples + other.examples, dense, rows)


class ParameterServer:
    """Aggregates the gradients of a day and applies what the aggregators give."""

    def __init__(self, model: Model, chosen: Setting, first: int) -> None:
        self._model, self._local_batch, self._first = model, chosen.local_batch, first
        self.dense = DenseAggregator(chosen.mode, model.dense.numel(), model.step)
        self.rows = RowAggregator(chosen.mode, WIDTH, lambda rows: model.updated[rows], model.step)

    def gradient(self, batch: int) -> Gradient:
        first = self._first + batch * self._local_batch
        return self._model.gradient(first, first + self._local_batch)

    def push(self, batch: int, token: int, gradient: Gradient) -> int | None:
        dense = self.dense.add(batch, token, gradient.dense)
        rows = self.rows.add(batch, token, gradient.rows, gradient.values)
        return self._apply(dense, rows)

    def flush(self) -> None:
        """The data have ended: applies what does not make a whole step."""
        self._apply(self.dense.flush(), self.rows.flush())

    def _apply(self, dense: np.ndarray | None, rows: tuple[np.ndarray, np.ndarray] | None) -> int | None:
        if dense is None or rows is None:
            return None
        self._model.update(dense, *rows)
        return self._model.step


def train(model: Model, days: Days, day: int, chosen: Setting, profile: LoadProfile, seed: int) -> Outcome:
    """Trains on a day, all of it."""
    server = ParameterServer(model, chosen, day * days.size)
    dispatcher = Dispatcher(chosen.mode, 0, days.size // chosen.local_batch, model.step)
    seconds = Crew(chosen.workers, chosen.local_batch, profile, 1000 * seed + day).run(dispatcher, server)
    server.flush()
    return Outcome(seconds, days.size, server.dense.metrics(), server.rows.metrics())


@dataclass(frozen=True)
class Recipe:
    """What a seed computes: can be sent to a process of its own, unlike data and models.

    Attributes:
        folder: of Frappe's files; None: a generated log.
        base, after: days of the base model, days after the switch.
        warm: those of the base model that sync trains, whatever mode trains it then.
        size: examples of a day.
        rates: learning rates of rows and network.
    """

    folder: Path | None
    base: int
    after: int
    size: int
    global_batch: int
    rates: tuple[float, float]
    rows_over: RowsOver
    seed: int
    warm: int = 0

    def days(self) -> Days:
        count = self.base + self.after + 1
        if self.folder:
            return frappe(self.folder, count, self.size, self.seed)
        return generated(count, self.size, self.seed)

    def setting(self, kind: Kind) -> Setting:
        return setting(kind, self.global_batch, self.rows_over)


class EmptyServer:
    """Takes gradients of one float: which gradients meet, and when, does not depend on what is in them."""

    def __init__(self, mode: Mode) -> None:
        self.dense = DenseAggregator(mode, 1)

    def gradient(self, batch: int) -> np.ndarray:
        return np.ones(1, np.float32)

    def push(self, batch: int, token: int, gradient: np.ndarray) -> int | None:
        return None if self.dense.add(batch, token, gradient) is None else self.dense.step


def empty_run(chosen: Setting, profile: LoadProfile, batches: int, seed: int) -> Outcome:
    """So many batches without a model."""
    server = EmptyServer(chosen.mode)
    seconds = Crew(chosen.workers, chosen.local_batch, profile, seed).run(Dispatcher(chosen.mode, 0, batches), server)
    return Outcome(seconds, batches * chosen.local_batch, server.dense.metrics(), {})
