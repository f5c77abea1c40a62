"""What a batch passes through, stage by stage: called by the threads of a run, or by one thread for one batch after the
other.

Guarantees: each method may be called by any number of threads for different batches, except `plan`, `settle`,
`begin_compute` and `end_compute`, which are called for one batch after the other, in order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from marius_oac.config.sections import PipelineConfig
from marius_oac.errors import DivergedError
from marius_oac.models.compute.soundness import LARGEST_VALUE, is_sound
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import Device
from marius_oac.pipeline.ledger import Ledger
from marius_oac.pipeline.rows import RowSource
from marius_oac.runtime.telemetry import Stage, Telemetry
from marius_oac.types import Planner, Step

Probe = Callable[[str, int], None]


class Staged(Protocol):
    """A pipeline, as its stages see it; see `runner.Pipeline`."""

    planner: Planner
    source: RowSource
    step: Step
    config: PipelineConfig
    device: Device
    telemetry: Telemetry
    probe: Probe | None

    @property
    def stop_requested(self) -> bool:
        """Whether the run should end."""


@dataclass(frozen=True)
class BatchResult:
    """The result of a batch that has been written."""

    batch_index: int
    timestamp: int
    loss: float
    examples: int
    replaced: int
    refused: int
    lost: int
    cached_rows: int


class Stages:
    """The stages of batches [first, last) of a pipeline; all batches before `first` must be in the stores.

    Attributes:
        ledger: of `window` batches in flight.
        rows: of these batches.
        next_timestamp: that of the next batch to compute.
    """

    def __init__(self, pipeline: Staged, first: int, last: int, window: int):
        self.pipeline, self.first = pipeline, first
        self.next_timestamp = first
        self.ledger = Ledger(first, window)
        self.rows = pipeline.source.begin(first, last, pipeline.device, lambda: pipeline.stop_requested)

    def plan(self, batch_index: int) -> Batch:
        """A batch with its plan."""
        with self._begin("plan", batch_index):
            return Batch(self.pipeline.planner.plan(batch_index))

    def settle(self, batch: Batch) -> bool:
        """Assigns the batch's rows; False: there is nothing to do with it."""
        with self._begin("settle", batch.batch_index):
            plan = self.pipeline.planner.assign_rows(batch.plan)
        if plan is None:
            return False
        batch.plan = plan
        return True

    def _begin(self, stage: str, batch_index: int) -> Stage:
        timed = self.pipeline.telemetry.stage(stage, batch_index)
        if self.pipeline.probe:
            self.pipeline.probe(stage, batch_index)
        return timed

    def fetch(self, batch: Batch) -> None:
        """Starts to bring the rows of an announced batch."""
        with self._begin("fetch", batch.batch_index):
            self.rows.fetch(batch)

    def read(self, batch: Batch) -> None:
        """Reads the rows, once the batch is within the window."""
        if self.pipeline.source.look_ahead:
            with self._begin("wait", batch.batch_index):
                self.rows.wait(batch)
        if self.pipeline.device.arranges():  # before the batch's place in the window begins
            with self.pipeline.telemetry.stage("arrange", batch.batch_index):
                self.pipeline.device.arrange(batch)
        batch.mft_at_read = self.ledger.enter(batch.batch_index)
        self.pipeline.device.borrow(batch)
        with self._begin("read", batch.batch_index):
            self.rows.read(batch)

    def upload(self, batch: Batch) -> None:
        """Brings rows and data to where they are computed."""
        with self._begin("upload", batch.batch_index):
            self.pipeline.device.upload(batch)

    def compute(self, batch: Batch) -> None:
        """Validates the batch, and lets the step change its rows."""
        with self.pipeline.device.computing(batch):
            values = self.begin_compute(batch)
            with self._begin("compute", batch.batch_index):
                before = self._copies(values) if self.pipeline.config.mode == "async-delta" else None
                self.end_compute(batch, values, self.pipeline.step.compute(values, batch.data, batch.timestamp))
                for new, old in zip(values, before or (), strict=False):
                    new -= old
        self.cache(batch)

    def begin_compute(self, batch: Batch) -> list[Any]:
        """Validates the batch and gives it its timestamp. Returns its rows of each table, for the step to change."""
        safe_to_evict = self.ledger.validating(batch.batch_index)
        if self.pipeline.source.validates:
            with self._begin("validate", batch.batch_index):
                self.rows.validate(batch, safe_to_evict)
        batch.timestamp, self.next_timestamp = self.next_timestamp, self.next_timestamp + 1
        return [batch.rows_in(batch.resident, table)[2] for table in range(len(batch.plan.rows))]

    def end_compute(self, batch: Batch, values: Sequence[Any], loss: Any) -> None:
        """Rounds and checks the rows that the step has changed."""
        batch.loss = loss
        self.pipeline.device.round(batch)
        source = self.pipeline.source
        pairs = zip(values, source.layouts, strict=True)
        batch.sound = [is_sound(rows, layout.dimension, source.largest) for rows, layout in pairs]
        if isinstance(batch.loss, float):
            self._check_sound(batch)

    def cache(self, batch: Batch) -> None:
        """Keeps the computed rows for later batches, if one may need them."""
        batch.cached = self.pipeline.source.caching and self.ledger.needs_caching(batch.timestamp)
        self.rows.computed(batch)

    def _check_downloaded(self, batch: Batch) -> None:
        """Calls `_check_sound`; if several batches are not sound, the error names the first one computed."""
        batch.loss = float(batch.loss)
        try:
            self._check_sound(batch)
        except DivergedError:
            self.ledger.wait_before(batch.timestamp)
            raise

    def _check_sound(self, batch: Batch) -> None:
        """Raises DivergedError if the loss is NaN or infinite, or rows are not sound."""
        if not math.isfinite(batch.loss):
            raise DivergedError(self.rows.position(batch.batch_index), batch.loss)
        for table, sound in zip(self.pipeline.planner.tables, batch.sound, strict=True):
            if not sound:
                what = (
                    f"rows of table {table.name!r} hold numbers that are NaN, infinite or beyond {LARGEST_VALUE:,.0f}"
                )
                raise DivergedError(self.rows.position(batch.batch_index), what)

    @staticmethod
    def _copies(values: Sequence[Any]) -> list[Any]:
        return [value.copy() if isinstance(value, np.ndarray) else value.clone() for value in values]

    def download(self, batch: Batch) -> None:
        """Brings computed rows back."""
        with self._begin("download", batch.batch_index) as stage:
            spans, now = self.pipeline.device.download(batch), time.perf_counter()
            if spans:  # before, the thread waited for the device to compute
                stage.began(now - spans["download"][0])
        for name, (began, ended) in spans.items():
            record = self.pipeline.telemetry.record
            record(f"device.{name}", batch.batch_index, now - began, now - ended, track=f"device {name}")

    def write(self, batch: Batch) -> None:
        """Writes the rows to their store."""
        with self._begin("write", batch.batch_index):
            if not isinstance(batch.loss, float):
                self._check_downloaded(batch)
            self.rows.write(batch)
            self.pipeline.device.written(batch, cached=batch.cached)
            self.ledger.finish(batch.timestamp)

    @staticmethod
    def result(batch: Batch) -> BatchResult:
        """What is told of a batch that was written."""
        return BatchResult(
            batch_index=batch.batch_index,
            timestamp=batch.timestamp,
            loss=batch.loss,
            examples=batch.plan.examples,
            replaced=int(batch.replaced),
            refused=batch.refused,
            lost=batch.lost,
            cached_rows=batch.cached_rows,
        )
